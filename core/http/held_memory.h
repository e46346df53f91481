// KV memory that clients hold between their requests: registered contexts and those of /mri.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "core/engine/lane.h"

namespace varve::http {

// Nobody can take this memory from them under pressure, so all of it together may be no more than a
// share of a lane's budget, "server.held_memory_percent". Thread-safe.
class HeldMemory {
 public:
  // Bytes that may be held besides what is; UINT64_MAX where the lane has no budget.
  // kResourceExhausted, with a text for the client, when there are none.
  absl::StatusOr<uint64_t> room(const Lane& lane, uint32_t percent) const;
  // Counts bytes; kResourceExhausted, and nothing is counted, when they are more than the room, and
  // kOutOfRange when they are more than there can ever be.
  absl::Status hold(const Lane& lane, uint64_t bytes, uint32_t percent);
  // Counts `after` where `before` were, whatever the room.
  void change(const Lane& lane, uint64_t before, uint64_t after);

 private:
  uint64_t held(const Lane& lane) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<const Lane*, uint64_t> bytes_ ABSL_GUARDED_BY(mutex_);
};

// One holder's bytes on a lane, from hold() to its end. One thread at a time.
class HeldPart {
 public:
  HeldPart() = default;
  HeldPart(HeldPart&& other) noexcept { swap(other); }
  HeldPart& operator=(HeldPart&& other) noexcept {
    swap(other);
    return *this;
  }
  ~HeldPart() { set(0); }

  // Once, before set().
  absl::Status hold(std::shared_ptr<HeldMemory> memory, const Lane& lane, uint64_t bytes,
                    uint32_t percent);
  uint64_t bytes() const { return bytes_; }
  void set(uint64_t bytes);

 private:
  void swap(HeldPart& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(lane_, other.lane_);
    std::swap(bytes_, other.bytes_);
  }

  std::shared_ptr<HeldMemory> memory_;
  const Lane* lane_ = nullptr;  // its address alone counts
  uint64_t bytes_ = 0;
};

// What a context takes of the budget.
inline uint64_t resident_bytes(const mri_kv_usage& usage) {
  return usage.hot_bytes + usage.warm_bytes + usage.cold_bytes;
}

}  // namespace varve::http
