// What an experiment's log says: may it be believed, and is the treatment good enough?
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/route/experiment_record.h"
#include "core/route/statistics/confidence.h"
#include "core/route/statistics/gates.h"

namespace varve {

enum class Verdict { kNotYet, kGoodEnough, kWorse };

// One question: is the treatment at most so much worse than the control? Each answer is wrong with
// probability at most `alpha`, over all looks at one split of the traffic together (a change of
// weights begins a new comparison): the experiment's own for the primary
// question, that divided by the number of guardrails for each other one.
struct Comparison {
  std::string metric;  // "ttft p95"
  std::string unit;    // "ms", or empty for shares
  bool is_primary = false;
  double alpha = 0;
  double control_value = 0, treatment_value = 0;  // at least, while requests are under way
  statistics::Interval control, treatment;        // with probability 1 - alpha, at all times
  Verdict verdict = Verdict::kNotYet;
  bool is_better = false;              // proven: better than the control, without any margin
  std::optional<uint64_t> more_units;  // both arms together, for kNotYet: about so many
  std::string limit;                   // "at most 5% above the control"
};

// Paired: the treatment's text under the treatment's and under the exact stack.
struct QualityBand {
  std::string depth;  // "all", "0-4K", …
  uint64_t units = 0;
  statistics::Interval delta_nll, kld, top1;  // means per unit
  double mean_delta_nll = 0, mean_kld = 0, mean_top1 = 0;
  uint64_t clipped = 0;  // units so far off that they count as the largest difference considered
  Verdict verdict = Verdict::kNotYet;
};

struct ArmSummary {
  std::string name;
  uint64_t units = 0, requests = 0, errors = 0;  // requests that have ended
  uint64_t open = 0;                             // requests under way
  double kv_bytes_per_token = 0;                 // NaN when nothing is known
};

struct TreatmentReport {
  std::string arm;
  std::vector<Comparison> comparisons;  // the primary one first
  std::vector<QualityBand> quality;     // empty without samples
  double kv_saved = 0;                  // share of the control's KV bytes per token; NaN: unknown
};

struct AbReport {
  ExperimentRecord record;
  std::vector<statistics::Gate> gates;
  bool is_valid = false;         // no gate is broken; else there are no results below
  std::vector<ArmSummary> arms;  // the control first
  std::vector<TreatmentReport> treatments;
  std::vector<ExperimentEvent> events;
};

// All that a log holds.
struct AbLog {
  std::vector<Exposure> exposures;
  std::vector<QualitySample> samples;
  std::vector<ExperimentEvent> events;
};
absl::StatusOr<AbLog> read_ab_log(const std::string& path);

// `configured`: from a profile, for experiments that the log does not describe. kNotFound when
// neither knows the experiment.
absl::StatusOr<AbReport> make_ab_report(const AbLog& log, const std::string& experiment,
                                        const std::vector<ExperimentConfig>& configured);

std::string ab_report_text(const AbReport& report);
std::string ab_report_json(const AbReport& report);  // an object

}  // namespace varve
