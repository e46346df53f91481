// Picks the next token from logits.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace varve {

struct SamplerOptions {
  double temperature = 0;  // 0: the likeliest token, ties to the lower number
  double top_p = 1;  // draws among the fewest likeliest tokens that together reach this probability
  uint64_t seed = 0;  // same seed and logits, same draws on every machine
};

// One per sequence; one thread at a time.
class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {}

  // A token number. NaN counts as -inf; an error when no logit is left or one is +inf.
  absl::StatusOr<int32_t> sample(std::span<const float> logits);

 private:
  int32_t draw(std::span<const float> logits, float largest);

  SamplerOptions options_;
  std::mt19937_64 random_;
  std::vector<std::pair<double, int32_t>> weights_;  // scratch: weight, token
};

}  // namespace varve
