// A lane: one stack, its queue, and the thread that steps it.
//
// Each step: admit what the queue offers (priority with ageing, fair share between tenants), ask
// the batching plugin which requests get how many tokens, clip that to the limits, pass the
// turnstile, run forward_step by sub-batches, sample, tell the sinks. Prompts are read piece by
// piece beside running answers: the lane measures how long steps take and grants prompts only as
// much as keeps the gap between tokens of running answers within `stall_max` times what it is
// without.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/engine/request.h"
#include "core/engine/text.h"
#include "core/engine/turnstile.h"
#include "core/plugin/stack.h"

namespace varve {

struct LaneOptions {
  std::string name;               // of the stack
  uint32_t concurrency = 16;      // sequences running at once
  uint32_t concurrency_max = 32;  // grows towards this while the queue is 80 % full or more
  uint32_t queue_max = 0;         // waiting requests; 0: min(200, 3 x concurrency)
  double stall_max = 2.5;
  uint32_t step_tokens_max = 4096;
  uint32_t step_ms_max = 100;  // no step shall take longer, so that others get their turn
  // Summaries are left out of steps while the queue is this full, %, for the classes named; back on
  // at half of it. 0: never.
  uint32_t peak_queue_percent = 0;
  std::vector<std::string> peak_classes;
  // Digest of model and stack: the first part of every prefix key.
  std::string digest;
  uint64_t hot_limit_tokens = 0;  // that its policy lets be hot in one context; 0: no limit
};

struct LaneStatus {
  uint32_t running = 0, waiting = 0, concurrency = 0, queue_max = 0;
  uint64_t steps = 0, step_clips = 0;  // answers of the batching plugin that broke a limit
  bool peak = false;
  uint64_t progress = 0;                         // grows whenever tokens were computed
  std::optional<absl::Duration> since_progress;  // how long ago that was; none: never
  absl::Duration oldest_wait = absl::ZeroDuration();
  mri_kv_usage usage{};  // of all running contexts
  uint64_t kept_prefix_bytes = 0, budget_bytes = 0, used_bytes = 0;
  uint64_t hot_limit_tokens = 0;  // of all that run together; 0: no limit
  uint64_t demotions = 0;
};

class Lane {
 public:
  // `stack` has a runtime with mri.text/1. The turnstile outlives the lane.
  static absl::StatusOr<std::unique_ptr<Lane>> start(LaneOptions options,
                                                     std::shared_ptr<Stack> stack,
                                                     Turnstile* turnstile);
  virtual ~Lane() = default;  // aborts what is left

  // kResourceExhausted at once when the queue is full (retry_after() says when to come back),
  // kUnavailable after drain(), kInvalidArgument for a request that can never run (too long;
  // options the runtime lacks). A shadow request is refused unless the lane has spare room. On
  // success the sink gets on_end exactly once, whatever happens. Setting *cancel ends the request
  // within a step. Memory that is short ends a request with kResourceExhausted; where it would be
  // on a machine of its own too, with kOutOfRange, or, in the midst of its answer, with kLength.
  // [any thread]
  virtual absl::Status submit(GenerateRequest request, std::shared_ptr<GenerateSink> sink,
                              CancelFlag cancel) = 0;
  // From queue length and measured rate; at least one second. [any]
  virtual absl::Duration retry_after() const = 0;
  virtual LaneStatus status() const = 0;  // [any]
  // Takes nothing new; returns when all has ended or at `deadline`, then aborts the rest
  // (kError/kUnavailable). [control]
  virtual void drain(absl::Time deadline) = 0;
  // Weights, limits, peak rule: what a reload may change (concurrency*, queue_max, stall_max,
  // step_*, peak_*). [any]
  virtual void reconfigure(const LaneOptions& options) = 0;
  // Forgets the kept prefix that ends with this prompt (a registered context). [any]
  virtual absl::Status forget_prefix(const std::string& tenant, std::vector<int32_t> prompt) = 0;

  virtual const Text& text() const = 0;
  virtual const mri_model_info& model() const = 0;
  virtual const Stack& stack() const = 0;
};

}  // namespace varve
