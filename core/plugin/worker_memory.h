// The memory that the host shares with one worker process: slots, each for one call at a time. A
// slot's payload holds flat copies of the call's structs and arrays (worker_calls.h) or a packed
// message (worker_messages.h). The host believes nothing that it reads here: it copies once, then
// checks the copy.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "core/base/limits.h"
#include "mri/status.h"

namespace varve {

struct WorkerSlot {
  alignas(64) std::atomic<uint32_t> request;   // the host counts it up: a call waits
  std::atomic<uint32_t> worker_sleeps;         // and must be woken
  std::atomic<uint32_t> worker_thread;         // its id
  std::atomic<uint32_t> is_in_row;             // calls come so fast that it pays to look first
  alignas(64) std::atomic<uint32_t> response;  // the request that has been answered
  std::atomic<uint32_t> host_sleeps;
  alignas(64) uint32_t call;  // WorkerCall
  mri_status status;
  uint32_t threw;       // an exception came out of the plugin: 1 with text in `error`, 2 without
  uint32_t n_bytes;     // of a packed message
  uint64_t body_bytes;  // of one page; quantizers only
  mri_error error;
  alignas(64) unsigned char payload[kWorkerPayloadBytes];
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// `response` after the worker's death; never a number of a request.
inline constexpr uint32_t kWorkerDead = UINT32_MAX;

// Sleeps at most `ns_max` (UINT64_MAX: for ever) while `word` is `seen`; if `looks_first`, only
// after looking at it for kWorkerSpinUs. `sleeps` tells the other side that it has to wake. May
// return early.
void wait_while(const std::atomic<uint32_t>& word, uint32_t seen, std::atomic<uint32_t>& sleeps,
                uint64_t ns_max, bool looks_first);
// Stores `value` and wakes the other side if it sleeps.
void store_and_wake(std::atomic<uint32_t>& word, uint32_t value,
                    const std::atomic<uint32_t>& sleeps);
// The same without asking whether anybody sleeps.
void store_and_wake_all(std::atomic<uint32_t>& word, uint32_t value);

// kWorkerSlots slots, mapped. Thread-safe.
class WorkerMemory {
 public:
  WorkerMemory() = default;
  WorkerMemory(WorkerMemory&& other) noexcept;
  WorkerMemory& operator=(WorkerMemory&&) = delete;
  ~WorkerMemory();

  // A nameless file of fixed size (sealed: nobody can cut it and crash the other side), zeroed. *fd
  // is the caller's to close.
  static absl::StatusOr<WorkerMemory> create(int* fd);
  // Maps the file behind `fd`, which must have the right size.
  static absl::StatusOr<WorkerMemory> attach(int fd);

  WorkerSlot& slot(uint32_t i) const { return slots_[i]; }

 private:
  WorkerSlot* slots_ = nullptr;
};

}  // namespace varve
