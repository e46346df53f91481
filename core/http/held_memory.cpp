#include "core/http/held_memory.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "core/http/http.h"

namespace varve::http {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

uint64_t share_of(uint64_t budget_bytes, uint32_t percent) {
  return budget_bytes / 100 * percent + budget_bytes % 100 * percent / 100;
}

absl::Status too_much(uint64_t held, uint64_t wanted, uint64_t most, uint32_t percent) {
  const std::string more = wanted == 0 ? "" : absl::StrCat(" and ", wanted, " more");
  return with_param(
      absl::ResourceExhaustedError(absl::StrCat(
          "found ", held, " bytes of KV memory held by contexts (/v1/contexts, /mri)", more,
          "; expected at most ", most, ", ", percent,
          " % of the stack's (server.held_memory_percent): DELETE contexts, or try again later")),
      "", "held_memory");
}

}  // namespace

uint64_t HeldMemory::held(const Lane& lane) const {
  const auto found = bytes_.find(&lane);
  return found == bytes_.end() ? 0 : found->second;
}

absl::StatusOr<uint64_t> HeldMemory::room(const Lane& lane, uint32_t percent) const {
  const uint64_t budget = lane.status().budget_bytes;
  if (budget == 0) return kNoLimit;
  const uint64_t most = share_of(budget, percent);
  const MutexLock lock(&mutex_);
  const uint64_t now = held(lane);
  if (now >= most) return too_much(now, 0, most, percent);
  return most - now;
}

absl::Status HeldMemory::hold(const Lane& lane, uint64_t bytes, uint32_t percent) {
  const uint64_t budget = lane.status().budget_bytes;
  const uint64_t most = budget == 0 ? kNoLimit : share_of(budget, percent);
  if (bytes > most) {
    return absl::OutOfRangeError(
        absl::StrCat("found a context of ", bytes, " bytes; expected at most ", most, ", ", percent,
                     " % of the stack's KV memory (server.held_memory_percent): send less text"));
  }
  const MutexLock lock(&mutex_);
  const uint64_t now = held(lane);
  if (now > most || bytes > most - now) return too_much(now, bytes, most, percent);
  bytes_[&lane] += bytes;
  return absl::OkStatus();
}

void HeldMemory::change(const Lane& lane, uint64_t before, uint64_t after) {
  const MutexLock lock(&mutex_);
  bytes_[&lane] += after - before;
}

absl::Status HeldPart::hold(std::shared_ptr<HeldMemory> memory, const Lane& lane, uint64_t bytes,
                            uint32_t percent) {
  const absl::Status status = memory->hold(lane, bytes, percent);
  if (!status.ok()) return status;
  memory_ = std::move(memory);
  lane_ = &lane;
  bytes_ = bytes;
  return absl::OkStatus();
}

void HeldPart::set(uint64_t bytes) {
  if (memory_ != nullptr && bytes != bytes_) memory_->change(*lane_, bytes_, bytes);
  bytes_ = bytes;
}

}  // namespace varve::http
