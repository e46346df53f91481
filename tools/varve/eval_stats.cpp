#include "tools/varve/eval_stats.h"

#include <algorithm>
#include <cmath>

namespace varve::cli {
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

Fidelity summarise(std::span<const LogitsDifference> differences) {
  Fidelity all;
  all.positions = differences.size();
  if (differences.empty()) return all;
  std::vector<double> klds;
  for (const LogitsDifference& difference : differences) {
    klds.push_back(difference.kld);
    all.mean_kld += difference.kld;
    all.top1_agreement += difference.same_top ? 1 : 0;
    all.delta_nll += difference.delta_nll;
  }
  const auto n = static_cast<double>(differences.size());
  all.mean_kld /= n;
  all.top1_agreement /= n;
  all.delta_nll /= n;
  all.p99_kld = quantile(klds, 0.99);
  all.max_kld = *std::max_element(klds.begin(), klds.end());
  return all;
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  const auto at = static_cast<size_t>(std::clamp(rank - 1, 0.0, values.size() - 1.0));
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(at), values.end());
  return values[at];
}

}  // namespace varve::cli
