#include "core/route/dispatcher_record.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/time/clock.h"

namespace varve {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// NaN when either did not come.
double seconds_between(absl::Time from, absl::Time to) {
  if (from == absl::InfinitePast() || to == absl::InfinitePast()) return kNone;
  return absl::ToDoubleSeconds(to - from);
}

// Nearest rank.
double quantile(std::vector<float>& values, double q) {
  if (values.empty()) return kNone;
  const size_t rank = static_cast<size_t>(std::ceil(q * static_cast<double>(values.size())));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::max<size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace

double wall_seconds() { return static_cast<double>(absl::ToUnixMicros(absl::Now())) / 1e6; }

const char* outcome_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

RequestMetrics request_metrics(const Placement& placement, const GenerateResult& result) {
  RequestMetrics metrics;
  metrics.class_name = placement.class_name;
  metrics.arm = placement.arm;
  metrics.stack = placement.stack;
  metrics.outcome = outcome_name(result.reason);
  metrics.queue_s = seconds_between(result.arrived, result.started);
  metrics.prefill_s = seconds_between(result.started, result.first_token);
  metrics.ttft_s = seconds_between(result.arrived, result.first_token);
  metrics.total_s = seconds_between(result.arrived, result.ended);
  metrics.token_gaps_ms = result.token_gaps_ms;
  metrics.prompt_tokens = result.prompt_tokens;
  metrics.cached_tokens = result.cached_tokens;
  metrics.output_tokens = result.output_tokens;
  metrics.has_timings = result.has_timings;
  metrics.timings = result.timings;
  return metrics;
}

Exposure arrival_row(const Placement& placement, const GenerateRequest& request) {
  Exposure row;
  row.experiment = placement.experiment;
  row.version = placement.experiment_version;
  row.unit_hash = placement.assignment.unit_hash;
  row.arm = placement.arm;
  row.class_name = placement.class_name;
  row.request_id = request.id;
  row.stack_digest = placement.digest;
  row.forced = placement.assignment.forced;
  row.burn_in = placement.assignment.burn_in;
  row.block = placement.assignment.block;
  row.wall_s = wall_seconds();
  row.prompt_tokens = request.prompt.size();
  return row;
}

Exposure ended_row(Exposure row, const GenerateResult& result) {
  row.ttft_ms = 1000 * seconds_between(result.arrived, result.first_token);
  std::vector<float> gaps = result.token_gaps_ms;
  row.gap_p50_ms = quantile(gaps, 0.5);
  row.gap_p99_ms = quantile(gaps, 0.99);
  row.total_ms = 1000 * seconds_between(result.arrived, result.ended);
  row.prompt_tokens = result.prompt_tokens;
  row.cached_tokens = result.cached_tokens;
  row.output_tokens = result.output_tokens;
  row.hot_bytes = result.usage.hot_bytes;
  row.warm_bytes = result.usage.warm_bytes;
  row.cold_bytes = result.usage.cold_bytes;
  row.finish = outcome_name(result.reason);
  if (!result.status.ok()) row.error = absl::StatusCodeToString(result.status.code());
  return row;
}

}  // namespace varve
