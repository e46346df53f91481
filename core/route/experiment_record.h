// What the exposure log says about an experiment itself, so that a report needs nothing but the
// log.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/serve_config.h"
#include "core/route/exposure_log.h"

namespace varve {

// Exposure::arm, QualitySample::arm and the metrics' label of an arm: its stack's name; arms after
// the first one on the same stack (mode aa) get "-2", "-3", ….
std::string arm_name(const ExperimentConfig& experiment, size_t arm);
// Of all arms, in order.
std::vector<std::string> arm_names(const ExperimentConfig& experiment);

// `what`: "started", "weights changed", "arm stopped". The detail is JSON: version, class, mode,
// arms with weights, limits, and `why` when it is not empty. Log one at each start of the server,
// each reload that changes the experiment, and each stop (with the stopped arm's weight at 0).
ExperimentEvent experiment_event(const ExperimentConfig& experiment, std::string what,
                                 std::string why, double wall_s);

// The split of traffic from `from_s` (seconds since 1970) on.
struct WeightsSegment {
  double from_s = 0;
  std::vector<double> weights;  // per arm, in per cent
};

struct ExperimentRecord {
  ExperimentConfig config;             // as last written
  std::vector<std::string> arms;       // names; the first is the control
  std::vector<WeightsSegment> splits;  // in time order, neighbours different; at least one
};

// From the events of one experiment. kNotFound when none describes it; kDataLoss when the last that
// does is of another form.
absl::StatusOr<ExperimentRecord> read_record(const std::string& experiment,
                                             std::span<const ExperimentEvent> events);
ExperimentRecord record_of(const ExperimentConfig& experiment);

}  // namespace varve
