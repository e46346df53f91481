#include "tools/varve/eval_stats.h"

#include <algorithm>
#include <cmath>

namespace varve::cli {

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
