#include "core/engine/sampler.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"

namespace varve {

absl::StatusOr<int32_t> Sampler::sample(std::span<const float> logits) {
  int32_t best = -1;
  float largest = -INFINITY;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > largest) {
      largest = logits[i];
      best = static_cast<int32_t>(i);
    }
  }
  if (best < 0 || !std::isfinite(largest)) {
    return absl::InternalError("the runtime gave no finite logit; expected one for each token");
  }
  if (options_.temperature <= 0) return best;
  return draw(logits, largest);
}

int32_t Sampler::draw(std::span<const float> logits, float largest) {
  weights_.clear();
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double weight =
        std::exp((logits[i] - static_cast<double>(largest)) / options_.temperature);
    if (!(weight > 0)) continue;
    weights_.emplace_back(weight, static_cast<int32_t>(i));
    total += weight;
  }
  const auto likelier = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  double kept = total;
  if (options_.top_p < 1) {
    std::sort(weights_.begin(), weights_.end(), likelier);
    kept = 0;
    size_t n = 0;
    while (n < weights_.size() && (n == 0 || kept < options_.top_p * total))
      kept += weights_[n++].first;
    weights_.resize(n);
  }
  // 53 random bits as a number in [0, 1): std::uniform_real_distribution differs between libraries.
  double left = static_cast<double>(random_() >> 11) * 0x1p-53 * kept;
  for (const auto& [weight, token] : weights_) {
    left -= weight;
    if (left < 0) return token;
  }
  return weights_.back().second;
}

}  // namespace varve
