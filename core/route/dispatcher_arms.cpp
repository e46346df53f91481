#include "core/route/dispatcher_arms.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"
#include "core/route/experiment_record.h"

namespace varve {
namespace {

double mean(double sum, uint64_t n) {
  return n == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(n);
}

// Only as many as a guardrail asks for are kept.
void add_unit(std::set<uint64_t>& units, uint64_t unit, uint64_t n_max) {
  if (units.size() < n_max) units.insert(unit);
}

}  // namespace

double Arms::Counters::error_rate() const {
  return requests == 0 ? 0 : static_cast<double>(errors) / static_cast<double>(requests);
}

std::vector<Arms::Counters>& Arms::counters_of(const ExperimentConfig& experiment) {
  std::vector<Counters>& counters = counters_[{experiment.name, experiment.version}];
  counters.resize(experiment.arms.size());
  return counters;
}

std::string Arms::ended(const ExperimentConfig& experiment, size_t arm, uint64_t unit_hash,
                        bool is_error, double ttft_ms) {
  MutexLock lock(&mutex_);
  std::vector<Counters>& all = counters_of(experiment);
  Counters& counters = all[arm];
  ++counters.requests;
  counters.errors += is_error ? 1 : 0;
  if (!std::isnan(ttft_ms)) {
    ++counters.with_ttft;
    counters.ttft_ms += ttft_ms;
  }
  add_unit(counters.units, unit_hash, experiment.min_units);
  const double rate = counters.error_rate(), control_rate = all[0].error_rate();
  if (arm == 0 || counters.units.size() < experiment.min_units ||
      rate - control_rate <= experiment.error_rate_max)
    return "";
  return absl::StrFormat(
      "error rate %.4f after %d requests, the control's %.4f after %d: more than "
      "error_rate_max %g over it",
      rate, counters.requests, control_rate, all[0].requests, experiment.error_rate_max);
}

std::string Arms::compared(const ExperimentConfig& experiment, size_t arm,
                           const QualitySample& sample) {
  MutexLock lock(&mutex_);
  Counters& counters = counters_of(experiment)[arm];
  ++counters.samples;
  counters.kld += sample.mean_kld;
  counters.top1 += sample.top1_agreement;
  add_unit(counters.compared_units, sample.unit_hash, experiment.min_units);
  if (arm == 0 || counters.compared_units.size() < experiment.min_units) return "";
  const double kld = mean(counters.kld, counters.samples);
  const double top1 = mean(counters.top1, counters.samples);
  // Negated, so that a mean that is no number stops the arm too.
  if (!(kld <= experiment.kld_max)) {
    return absl::StrFormat("mean divergence %g nat over %d samples: more than kld_max %g", kld,
                           counters.samples, experiment.kld_max);
  }
  if (!(top1 >= experiment.top1_min)) {
    return absl::StrFormat(
        "agreement on the likeliest token %g over %d samples: less than "
        "top1_min %g",
        top1, counters.samples, experiment.top1_min);
  }
  return "";
}

ExperimentStatus Arms::status(const ExperimentConfig& experiment) const {
  ExperimentStatus status{
      experiment.name, experiment.class_name, experiment.mode, experiment.version, {}};
  MutexLock lock(&mutex_);
  const auto found = counters_.find({experiment.name, experiment.version});
  for (size_t i = 0; i < experiment.arms.size(); ++i) {
    const Counters none;
    const Counters& counters =
        found == counters_.end() || i >= found->second.size() ? none : found->second[i];
    ArmStatus arm;
    arm.arm = arm_name(experiment, i);
    arm.weight = experiment.arms[i].weight;
    arm.requests = counters.requests;
    arm.errors = counters.errors;
    arm.quality_samples = counters.samples;
    arm.ttft_ms_mean = mean(counters.ttft_ms, counters.with_ttft);
    arm.kld_mean = mean(counters.kld, counters.samples);
    arm.top1_mean = mean(counters.top1, counters.samples);
    status.arms.push_back(std::move(arm));
  }
  return status;
}

void Arms::keep(const std::vector<ExperimentConfig>& experiments) {
  std::map<Key, std::vector<Counters>> kept;
  MutexLock lock(&mutex_);
  for (const ExperimentConfig& experiment : experiments) {
    const auto found = counters_.find({experiment.name, experiment.version});
    if (found != counters_.end()) kept.insert(counters_.extract(found));
  }
  counters_ = std::move(kept);
}

}  // namespace varve
