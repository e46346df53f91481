// How far the logits of one engine are from those of another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/engine/logits_difference.h"

namespace varve::cli {

// Over all positions; zeros for none.
struct Fidelity {
  uint64_t positions = 0;
  double mean_kld = 0, p99_kld = 0, max_kld = 0;
  double top1_agreement = 0;  // 0 to 1
  double delta_nll = 0;       // mean
};
Fidelity summarise(std::span<const LogitsDifference> differences);

// The smallest value that at least `share` (0 to 1) of the values do not exceed; 0 for none.
double quantile(std::vector<double> values, double share);
inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

}  // namespace varve::cli
