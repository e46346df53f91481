// Asks the batching plugin what the next step does, and holds it to the limits.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "mri/kind/batching.h"
#include "mri/sdk/host.hpp"

namespace varve {

struct BatchLimits {
  uint64_t step_tokens_max = 1;  // prompt and decode tokens of one step
  uint64_t kv_bytes_free = UINT64_MAX;
  uint32_t sequences_max = 1;  // running at once
};

// One thread at a time, clips() any.
class Batcher {
 public:
  // Without a plugin: first come, first served.
  explicit Batcher(mri::Peer<mri_batching_v1> plugin) : plugin_(plugin) {}

  // Shares of the next step, sub-batches in rising order; none only when there are no requests or
  // no tokens. Whatever the plugin answers: each request at most once, a known number, 1 token to
  // decode or at most its prompt's rest, no more tokens in all and no more running than allowed.
  // A plugin that fails, or picks nothing although there is work, is replaced for this step.
  std::vector<mri_batch_pick> next_step(std::span<const mri_batch_request> requests,
                                        const BatchLimits& limits);

  // Answers (not picks) that broke a limit, or none where there was work.
  uint64_t clips() const { return clips_.load(std::memory_order_relaxed); }

 private:
  bool ask(std::span<const mri_batch_request> requests, const BatchLimits& limits,
           std::vector<mri_batch_pick>* picks) const;

  const mri::Peer<mri_batching_v1> plugin_;
  std::atomic<uint64_t> clips_{0};
};

}  // namespace varve
