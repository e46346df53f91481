#include "core/route/statistics/gates.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/route/statistics/confidence.h"

namespace varve::statistics {
namespace {

// How many units the splits of the mixture are worth: large, so that it looks for small deviations.
constexpr double kConcentration = 5000;
// A request may have been placed just before a change and arrive in the log just after it.
constexpr double kGraceS = 5;
// Relative difference of token counts that no one needs to hear of.
constexpr double kBalanceMargin = 0.1;

// Number of the split in force when the row's request arrived; SIZE_MAX too close to a change.
size_t split_at(const ExperimentRecord& record, double wall_s) {
  size_t at = 0;
  for (size_t i = 1; i < record.splits.size(); ++i) {
    if (record.splits[i].from_s <= wall_s) at = i;
    if (std::abs(record.splits[i].from_s - wall_s) < kGraceS) return SIZE_MAX;
  }
  return at;
}

bool is_switchback(const ExperimentRecord& record) { return record.config.mode == "switchback"; }

// Calls `visit(split, unit, arm)` for each counted row.
template <class Visit>
void for_each_placement(const ExperimentRecord& record, std::span<const Exposure> rows,
                        Visit visit) {
  for (const Exposure& row : rows) {
    // Of what ends in the queue there will be no row.
    if (!is_counted(row) || row.finish == kWaiting) continue;
    const auto arm = std::find(record.arms.begin(), record.arms.end(), row.arm);
    const size_t split = split_at(record, row.wall_s);
    if (arm == record.arms.end() || split == SIZE_MAX) continue;
    visit(split, is_switchback(record) ? row.block : row.unit_hash,
          static_cast<size_t>(arm - record.arms.begin()));
  }
}

// Switchback gives every arm as many blocks as each other one, whatever the weights; a stopped arm
// leaves its own to the control.
std::vector<double> expected_split(const ExperimentRecord& record, size_t split) {
  std::vector<double> weights = record.splits[split].weights;
  if (!is_switchback(record)) return weights;
  double stopped = 0;
  for (double& weight : weights) {
    stopped += weight > 0 ? 0 : 1;
    weight = weight > 0 ? 1 : 0;
  }
  weights[0] += stopped;
  return weights;
}

}  // namespace

void SampleRatio::set_weights(std::span<const double> weights) {
  log_before_ += log_evidence();
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  shares_.clear();
  for (const double weight : weights) shares_.push_back(sum > 0 ? weight / sum : 0);
  counts_.assign(weights.size(), 0);
}

void SampleRatio::add(size_t arm) {
  counts_[arm] += 1;
  log_largest_ = std::max(log_largest_, log_before_ + log_evidence());
}

double SampleRatio::log_evidence() const {
  const double n = std::accumulate(counts_.begin(), counts_.end(), 0.0);
  double log = std::lgamma(kConcentration) - std::lgamma(kConcentration + n);
  for (size_t i = 0; i < shares_.size(); ++i) {
    if (counts_[i] == 0) continue;
    if (shares_[i] == 0) return std::numeric_limits<double>::infinity();
    const double a = kConcentration * shares_[i];
    log += std::lgamma(a + counts_[i]) - std::lgamma(a) - counts_[i] * std::log(shares_[i]);
  }
  return log;
}

double SampleRatio::p_value() const { return std::exp(-log_largest_); }

Gate sample_ratio_gate(const ExperimentRecord& record, std::span<const Exposure> rows) {
  SampleRatio ratio;
  size_t split = SIZE_MAX;
  absl::flat_hash_map<uint64_t, size_t> seen;  // split in which the unit was counted
  std::vector<uint64_t> totals(record.arms.size(), 0);
  for_each_placement(record, rows, [&](size_t now, uint64_t unit, size_t arm) {
    if (!seen.try_emplace(unit, now).second) return;
    if (now != split) {
      split = now;
      ratio.set_weights(expected_split(record, split));
    }
    ratio.add(arm);
    ++totals[arm];
  });
  Gate gate{"sample ratio", Gate::State::kPassed, {}};
  const double p = ratio.p_value();
  gate.text =
      absl::StrFormat("%s in the arms at weights %s; p = %.3g", absl::StrJoin(totals, " : "),
                      absl::StrJoin(expected_split(record, record.splits.size() - 1), " : "), p);
  if (p < kGateAlpha) {
    gate.state = Gate::State::kBroken;
    absl::StrAppend(&gate.text, ", expected at least ", kGateAlpha,
                    ": units are lost or placed wrongly, so the arms are not comparable; look for "
                    "requests that fail before they are logged");
  }
  return gate;
}

Gate crossover_gate(const ExperimentRecord& record, std::span<const Exposure> rows) {
  std::vector<absl::flat_hash_map<uint64_t, size_t>> arm_of(record.splits.size());
  absl::flat_hash_map<uint64_t, bool> crossed;
  for_each_placement(record, rows, [&](size_t split, uint64_t unit, size_t arm) {
    if (arm_of[split].try_emplace(unit, arm).first->second != arm) crossed[unit] = true;
  });
  const char* what = is_switchback(record) ? "time blocks" : "units";
  Gate gate{"crossover", Gate::State::kPassed, absl::StrCat("no ", what, " in two arms")};
  if (!crossed.empty()) {
    gate.state = Gate::State::kBroken;
    gate.text = absl::StrCat(crossed.size(), " ", what,
                             " in two arms under the same weights; expected none: two servers with "
                             "different salts or weights write to this log, or the hash is broken");
  }
  return gate;
}

Gate balance_gate(const ExperimentRecord& record, std::span<const ArmData> arms) {
  constexpr double kQuantiles[] = {0.5, 0.9};
  struct Covariate {
    const char* name;
    std::vector<double> ArmData::*values;
  };
  constexpr Covariate kCovariates[] = {{"prompt_tokens", &ArmData::prompt_tokens},
                                       {"cached_tokens", &ArmData::cached_tokens}};
  Gate gate{"balance", Gate::State::kPassed, "prompt and cached tokens alike in the arms"};
  const auto n_tests = 8.0 * static_cast<double>(arms.size() - 1);
  const double enough = std::log(n_tests / kGateAlpha);
  for (size_t arm = 1; arm < arms.size(); ++arm) {
    for (const Covariate& covariate : kCovariates) {
      const std::vector<double> control = ascending(arms[0].*covariate.values);
      const std::vector<double> treatment = ascending(arms[arm].*covariate.values);
      for (const double p : kQuantiles) {
        const double factor = 1 + kBalanceMargin;
        if (log_evidence_of_more(control, treatment, p, factor, 0.5) < enough &&
            log_evidence_of_more(treatment, control, p, factor, 0.5) < enough)
          continue;
        gate.state = Gate::State::kBroken;
        gate.text = absl::StrFormat(
            "%s of first requests differ: %g%% quantile %.0f in %s, %.0f in %s; expected at most "
            "%g%% apart: the arms serve different traffic%s",
            covariate.name, 100 * p, sample_quantile(control, p), record.arms[0],
            sample_quantile(treatment, p), record.arms[arm], 100 * kBalanceMargin,
            covariate.values == &ArmData::cached_tokens ? ", or share prefixes differently" : "");
        return gate;
      }
    }
  }
  return gate;
}

}  // namespace varve::statistics
