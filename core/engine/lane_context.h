// A context of a runtime and what is asked about it, with values instead of C tables.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plugin/stack.h"
#include "mri/ext/memory.h"
#include "mri/ext/timings.h"
#include "mri/kind/runtime.h"

namespace varve {

// The runtime of a stack and its optional interfaces. Usable while the stack is.
struct LaneRuntime {
  explicit LaneRuntime(const Stack& stack)
      : runtime(stack.runtime()), memory(stack.memory()), timings(stack.timings()) {}

  // Bytes freed; 0 also when the runtime offers no such thing. ctx 0: only kept prefixes.
  uint64_t shrink(uint64_t ctx, uint64_t wanted_bytes) const;
  // All zero when the runtime does not tell.
  mri_memory_usage memory_usage() const;
  // Status of the call as a whole; each sequence has its own besides.
  absl::Status step(std::span<mri_step_seq> seqs, uint64_t step_id, const uint32_t* cancel,
                    mri_kv_usage* usage, mri_error* error) const;

  mri::Peer<mri_runtime_v1> runtime;
  mri::Peer<mri_memory_v1> memory;
  mri::Peer<mri_timings_v1> timings;
};

// Nobody holds memory but one, who has `n_contexts` contexts: no kept prefixes, no other contexts.
inline bool is_for_one(const mri_memory_usage& memory, uint64_t n_contexts) {
  return memory.contexts == n_contexts && memory.kept_bytes == 0;
}

// Owns one context number: released at the end, whatever happens.
class LaneContext {
 public:
  LaneContext() = default;
  LaneContext(LaneContext&& other) noexcept
      : runtime_(other.runtime_), number_(std::exchange(other.number_, 0)) {}
  LaneContext& operator=(LaneContext&& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(number_, other.number_);
    return *this;
  }
  ~LaneContext() { release(); }

  struct Opened;
  // With the longest kept prefix of `keys`, or empty.
  static absl::StatusOr<Opened> open(const LaneRuntime& runtime,
                                     std::span<const mri_prefix_key> keys, uint64_t tokens_max,
                                     uint64_t seed);

  uint64_t number() const { return number_; }
  explicit operator bool() const { return number_ != 0; }
  void release();
  // A hint: what cannot be kept is not.
  void keep(std::span<const mri_prefix_key> keys, bool is_pinned);
  mri_kv_usage usage();  // all zero when the runtime does not tell
  bool enable_timings();
  bool read_timings(mri_timings* out);

 private:
  LaneContext(const LaneRuntime& runtime, uint64_t number) : runtime_(&runtime), number_(number) {}

  const LaneRuntime* runtime_ = nullptr;
  uint64_t number_ = 0;
};

struct LaneContext::Opened {
  LaneContext context;
  uint64_t n_tokens = 0;  // that it holds already
};

}  // namespace varve
