#include "core/route/dispatcher_arms.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"
#include "core/route/experiment_record.h"

namespace varve {
namespace {

// A lane looks at deadlines between steps; one that is so late has lost sight of them.
constexpr absl::Duration kLate = absl::Seconds(10);

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

bool Arms::take(const ExperimentConfig& experiment, size_t arm, uint64_t unit_hash,
                absl::Time deadline) {
  auto& open = counters_of(experiment)[arm].open;
  const auto [first, last] = open.equal_range(deadline);
  const auto found =
      std::find_if(first, last, [&](const auto& one) { return one.second == unit_hash; });
  if (found == last) return false;
  open.erase(found);
  return true;
}

void Arms::began(const ExperimentConfig& experiment, size_t arm, uint64_t unit_hash,
                 absl::Time deadline) {
  MutexLock lock(&mutex_);
  counters_of(experiment)[arm].open.emplace(deadline, unit_hash);
}

void Arms::refused(const ExperimentConfig& experiment, size_t arm, uint64_t unit_hash,
                   absl::Time deadline) {
  MutexLock lock(&mutex_);
  (void)take(experiment, arm, unit_hash, deadline);
}

void Arms::ended(const ExperimentConfig& experiment, size_t arm, uint64_t unit_hash,
                 absl::Time deadline, bool is_error, double ttft_ms) {
  MutexLock lock(&mutex_);
  if (!take(experiment, arm, unit_hash, deadline)) return;
  Counters& counters = counters_of(experiment)[arm];
  ++counters.requests;
  counters.errors += is_error ? 1 : 0;
  if (!std::isnan(ttft_ms)) {
    ++counters.with_ttft;
    counters.ttft_ms += ttft_ms;
  }
  add_unit(counters.units, unit_hash, experiment.min_units);
}

std::vector<Arms::Breach> Arms::breaches(const ExperimentConfig& experiment, absl::Time now) {
  MutexLock lock(&mutex_);
  std::vector<Counters>& all = counters_of(experiment);
  for (Counters& counters : all) {
    while (!counters.open.empty() && counters.open.begin()->first + kLate < now) {
      ++counters.requests;
      ++counters.errors;
      add_unit(counters.units, counters.open.begin()->second, experiment.min_units);
      counters.open.erase(counters.open.begin());
    }
  }
  std::vector<Breach> breaches;
  const double control_rate = all[0].error_rate();
  for (size_t arm = 1; arm < all.size(); ++arm) {
    const double rate = all[arm].error_rate();
    if (experiment.arms[arm].weight == 0 || all[arm].units.size() < experiment.min_units ||
        rate - control_rate <= experiment.error_rate_max)
      continue;
    breaches.push_back(
        {arm_name(experiment, arm),
         absl::StrFormat("error rate %.4f after %d requests, the control's %.4f after %d: more "
                         "than error_rate_max %g over it",
                         rate, all[arm].requests, control_rate, all[0].requests,
                         experiment.error_rate_max)});
  }
  return breaches;
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

void add_open(const std::vector<Exposure>& open_requests, ExperimentStatus& status) {
  for (const Exposure& row : open_requests) {
    if (row.experiment != status.name || row.version != status.version || row.forced || row.burn_in)
      continue;
    for (ArmStatus& arm : status.arms) {
      if (arm.arm != row.arm) continue;
      ++arm.open;
      if (!std::isnan(row.ttft_ms)) continue;
      ++arm.unanswered;
      arm.unanswered_ms_max = std::max(arm.unanswered_ms_max, row.total_ms);
    }
  }
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
