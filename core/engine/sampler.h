// Picks the next token from logits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plugin/stack.h"

namespace varve {

// Defaults are off. Terms and order of work as in mri/ext/sampling.h.
struct SamplerOptions {
  double temperature = 0;  // 0: the likeliest token, ties to the lower number
  double top_p = 1;        // draws among the fewest likeliest tokens that reach this probability
  double min_p = 0;        // and at least this share of the likeliest one's probability
  uint32_t top_k = 0;
  double repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  uint32_t penalty_tokens = 64;
  uint64_t seed = 0;  // same seed and logits, same draws
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::string grammar;  // GBNF; empty: none
};

// One per sequence; one thread at a time. Temperature and top_p alone are drawn here; everything
// else through the runtime's mri.sampling/1.
class Sampler {
 public:
  // kInvalidArgument: a grammar that cannot be read. kUnimplemented: the stack's runtime has no
  // sampling and the options need it.
  static absl::StatusOr<std::unique_ptr<Sampler>> make(const SamplerOptions& options,
                                                       const Stack& stack);
  // The same with the runtime's table, which may be absent, and its vocabulary's size.
  static absl::StatusOr<std::unique_ptr<Sampler>> make(const SamplerOptions& options,
                                                       const mri::Peer<mri_sampling_v1>& sampling,
                                                       uint64_t n_vocabulary);
  virtual ~Sampler() = default;

  // A token number, taken into account for the next one. NaN counts as -inf; an error when no logit
  // is left or one is +inf. kOutOfRange: the grammar is complete and allows nothing more.
  virtual absl::StatusOr<int32_t> sample(std::span<const float> logits) = 0;
  // Tokens that were not drawn, for penalties: the prompt's.
  virtual absl::Status accept(std::span<const int32_t> tokens) = 0;
};

}  // namespace varve
