// A text read by a runtime beside live traffic: what it would have answered at each position.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/engine/turnstile.h"
#include "mri/kind/runtime.h"
#include "mri/sdk/host.hpp"

namespace varve {

// One thread at a time. Every step passes the turnstile at priority 0, and prompts are read in
// pieces that are kept to about a twentieth of a second, so that live steps hardly wait for one.
class ForcedText {
 public:
  struct Where {
    mri::Peer<mri_runtime_v1> runtime;  // outlives this
    uint64_t n_vocabulary = 0;
    Turnstile* turnstile = nullptr;
    const std::atomic<uint32_t>* cancel = nullptr;  // non-zero: ends with kCancelled
    // Before each step; may wait, and an error ends the text. May be empty.
    std::function<absl::Status()> before_step = nullptr;
  };
  // Reads the prompt (at least one token). `n_answer`: how many tokens may be appended.
  static absl::StatusOr<std::unique_ptr<ForcedText>> read(const Where& where,
                                                          std::span<const int32_t> prompt,
                                                          uint64_t n_answer);
  ~ForcedText();
  ForcedText(const ForcedText&) = delete;
  ForcedText& operator=(const ForcedText&) = delete;

  // Of the token after all that was read.
  std::span<const float> logits() const { return logits_; }
  // One token of the answer, in a step of its own: as it was generated.
  absl::Status append(int32_t token) { return step({&token, 1}, 0, true); }

 private:
  explicit ForcedText(const Where& where) : where_(where), logits_(where.n_vocabulary) {}
  absl::Status open(uint64_t tokens_max);
  absl::Status step(std::span<const int32_t> tokens, uint32_t flags, bool wants_logits);

  const Where where_;
  std::vector<float> logits_;
  uint64_t context_ = 0, n_steps_ = 0;
};

}  // namespace varve
