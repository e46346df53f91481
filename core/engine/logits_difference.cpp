#include "core/engine/logits_difference.h"

#include <algorithm>
#include <cmath>

namespace varve {
namespace {

double log_sum_exp(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

}  // namespace

LogitsDifference compare_logits(std::span<const float> reference, std::span<const float> candidate,
                                int32_t next_token) {
  const double reference_norm = log_sum_exp(reference), candidate_norm = log_sum_exp(candidate);
  LogitsDifference difference;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double log_p = reference[i] - reference_norm;
    const double p = std::exp(log_p);
    if (p > 0) difference.kld += p * (log_p - (candidate[i] - candidate_norm));
  }
  difference.kld = std::max(difference.kld, 0.0);  // rounding of equal logits; NaN stays
  const auto top = [](std::span<const float> logits) {
    return std::max_element(logits.begin(), logits.end()) - logits.begin();
  };
  difference.same_top = top(reference) == top(candidate);
  const auto next = static_cast<size_t>(next_token);
  difference.delta_nll = (reference[next] - reference_norm) - (candidate[next] - candidate_norm);
  return difference;
}

}  // namespace varve
