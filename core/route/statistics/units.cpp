#include "core/route/statistics/units.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace varve::statistics {
namespace {

// NaN where the request was to have no answer.
double ttft_of(const Exposure& row) {
  const bool gave_up = !row.error.empty() || row.finish == "cancelled" || row.finish == "error";
  if (std::isnan(row.ttft_ms) && gave_up) return std::numeric_limits<double>::infinity();
  return row.ttft_ms;
}

bool is_failure(const Exposure& row) { return !row.error.empty() && row.finish != "cancelled"; }

// `lower`: what a value that is not there yet will be at least.
void keep(Values& values, const Exposure& row, double value, double lower) {
  const bool is_unsettled = std::isnan(value) && is_open(row);
  if (std::isnan(value) && !is_unsettled) return;
  values.lower.push_back(is_unsettled ? lower : value);
  values.upper.push_back(is_unsettled ? std::numeric_limits<double>::infinity() : value);
}

void keep_ttft(Values& values, const Exposure& row) {
  // Of what ends in the queue nobody will hear: its wait must not speak against the arm.
  keep(values, row, ttft_of(row), row.finish == kRunning ? row.total_ms : 0);
}

}  // namespace

size_t Units::arm_number(const std::string& name) const {
  const auto at = std::find(names_.begin(), names_.end(), name);
  return at == names_.end() ? SIZE_MAX : static_cast<size_t>(at - names_.begin());
}

void Units::add(const Exposure& row) {
  if (!is_counted(row) || row.burn_in) return;
  const size_t number = arm_number(row.arm);
  if (number == SIZE_MAX) return;
  const auto [at, is_new] = seen_.try_emplace(row.unit_hash);
  Seen& seen = at->second;
  const bool is_within = row.wall_s >= when_.from_s && row.wall_s < when_.to_s;
  if (is_new) seen.is_counted = is_within;
  if (!seen.is_counted || !is_within) return;
  ArmData& arm = arms_[number];
  const bool has_ended = !is_open(row);
  ++(has_ended ? arm.requests : arm.open);
  arm.errors += is_failure(row) ? 1 : 0;
  if (row.error.empty() && has_ended) {
    arm.kv_bytes += static_cast<double>(row.hot_bytes + row.warm_bytes + row.cold_bytes);
    arm.kv_tokens += static_cast<double>(row.prompt_tokens + row.output_tokens);
  }
  if (seen.requests == 0) {
    seen.arm = number;
    ++arm.units;
    keep_ttft(arm.metric[kTtft], row);
    keep(arm.metric[kGap], row, row.gap_p50_ms, 0);
    keep(arm.metric[kStall], row, row.gap_p99_ms, 0);
    arm.failed += is_failure(row) ? 1 : 0;
    arm.undecided += has_ended ? 0 : 1;
    if (has_ended) {
      arm.prompt_tokens.push_back(static_cast<double>(row.prompt_tokens));
      arm.cached_tokens.push_back(static_cast<double>(row.cached_tokens));
    }
  } else if (seen.requests == 1 && seen.arm == number) {
    keep_ttft(arm.metric[kLaterTtft], row);
  }
  ++seen.requests;
}

std::vector<double> block_differences(std::span<const Exposure> rows, const std::string& control,
                                      const std::string& treatment, double Exposure::*latency_ms) {
  struct Block {
    bool is_treatment = false;
    double sum = 0, n = 0;
  };
  std::map<uint64_t, Block> blocks;
  uint64_t unsettled = UINT64_MAX;  // the first block that is
  for (const Exposure& row : rows) {
    const double latency = row.*latency_ms;
    if (!is_counted(row) || row.burn_in || (row.arm != control && row.arm != treatment)) continue;
    if (std::isnan(latency) && is_open(row)) unsettled = std::min(unsettled, row.block);
    if (!(latency > 0) || std::isinf(latency)) continue;
    Block& block = blocks[row.block];
    block.is_treatment = row.arm == treatment;
    block.sum += std::log(latency);
    block.n += 1;
  }
  // The last one may not be over: its mean still moves.
  if (!blocks.empty()) blocks.erase(std::prev(blocks.end()));
  blocks.erase(blocks.lower_bound(unsettled), blocks.end());
  std::vector<double> differences;
  const Block* open = nullptr;
  for (const auto& [number, block] : blocks) {
    if (open == nullptr || open->is_treatment == block.is_treatment) {
      open = &block;
      continue;
    }
    const double difference = block.sum / block.n - open->sum / open->n;
    differences.push_back(block.is_treatment ? difference : -difference);
    open = nullptr;
  }
  return differences;
}

}  // namespace varve::statistics
