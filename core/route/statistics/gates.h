// Whether an experiment may be believed at all. Each gate is valid under peeking, too.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/route/experiment_record.h"
#include "core/route/statistics/units.h"

namespace varve::statistics {

struct Gate {
  enum class State { kPassed, kMissing, kBroken };
  std::string name;
  State state = State::kPassed;
  std::string text;  // what was found, expected, and what to do
};

// Did the units arrive in the arms as the weights say? A Dirichlet-multinomial mixture over all
// other splits against the intended one is an e-process (Lindon and Malek 2022, arXiv 2011.03567):
// with c_i units in arm i, a_i = kConcentration x share_i and n = sum c_i,
//   E = Gamma(sum a) / Gamma(sum a + n) x prod Gamma(a_i + c_i) / Gamma(a_i) / share_i^c_i.
// When the weights change, a new mixture begins and the products of both count.
class SampleRatio {
 public:
  // Ends what was counted under the old weights. Arms of weight 0 expect nobody.
  void set_weights(std::span<const double> weights);
  void add(size_t arm);
  // Anytime-valid: 1 / the largest evidence so far.
  double p_value() const;

 private:
  double log_evidence() const;

  std::vector<double> shares_, counts_;
  double log_before_ = 0;  // of earlier weights
  double log_largest_ = 0;
};

inline constexpr double kGateAlpha = 0.001;

// Rows in the order of arrival. Switchback: blocks in place of units.
Gate sample_ratio_gate(const ExperimentRecord& record, std::span<const Exposure> rows);
// A unit (a block) in two arms under the same weights.
Gate crossover_gate(const ExperimentRecord& record, std::span<const Exposure> rows);
// Prompt and cached tokens of the units' first requests, at their 50th and 90th percentile.
Gate balance_gate(const ExperimentRecord& record, std::span<const ArmData> arms);

}  // namespace varve::statistics
