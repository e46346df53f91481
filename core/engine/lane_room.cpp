// Contexts and the memory they need: reuse, keeping, and who gives way when it is short.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/engine/lane_impl.h"

namespace varve {
namespace {

// For lack of memory, a sequence tries again this often in a row: while others are demoted, and in
// all.
constexpr uint32_t kDemotionTriesMax = 8;
constexpr uint32_t kRoomTriesMax = 32;
constexpr uint32_t kPreemptionsMax = 8;
// Room is made for this many tokens at least, so that the next steps need not ask again.
constexpr uint64_t kRoomTokensMin = 64;

}  // namespace

// It either has a context then, or is not running any more (it ended, or waits again).
void LaneImpl::open(LaneSequence& sequence) {
  while (true) {
    std::span<const mri_prefix_key> keys;
    // One token at least is computed: its logits are needed.
    if (runtime_.memory && sequence.shares()) {
      keys = sequence.keys.extend(sequence.tokens);
      keys = keys.first(std::min(keys.size(), (sequence.tokens.size() - 1) / kPrefixBlockTokens));
    }
    absl::StatusOr<LaneContext::Opened> opened =
        LaneContext::open(runtime_, keys, sequence.tokens_max, sequence.request.sampling.seed);
    if (opened.ok()) {
      sequence.context = std::move(opened->context);
      sequence.n_read = opened->n_tokens;
      if (!sequence.has_started) {
        sequence.has_started = true;
        sequence.started_us = clock_.now_us();
        sequence.result.started = clock_.time(sequence.started_us);
        sequence.result.cached_tokens = opened->n_tokens;
      }
      if (sequence.request.wants_timings)
        sequence.result.has_timings = sequence.context.enable_timings();
      return;
    }
    if (!absl::IsResourceExhausted(opened.status())) {
      return end(sequence, FinishReason::kError, opened.status());
    }
    if (!make_room(sequence, kRoomTokensMin)) return end_without_room(sequence, opened.status());
    if (!is_running(&sequence)) return;
  }
}

// After an attempt that failed for lack of memory. True: try again (`sequence` may have been sent
// back to the queue: is_running()). Kept prefixes go first, then the blocks of less important
// sequences to cheaper tiers, then its own, then such sequences' places.
bool LaneImpl::make_room(LaneSequence& sequence, uint64_t n_tokens) {
  if (++sequence.room_tries > kRoomTriesMax) return false;
  const uint64_t wanted_bytes =
      std::max(n_tokens, kRoomTokensMin) * std::max<uint64_t>(1, model_.kv_bytes_per_token_bf16);
  if (sequence.room_tries <= kDemotionTriesMax) {
    if (runtime_.shrink(0, wanted_bytes) > 0) return true;
    if (demote_somebody(sequence, wanted_bytes)) return true;
    if (sequence.context && runtime_.shrink(sequence.context.number(), wanted_bytes) > 0)
      return true;
  }
  LaneSequence* victim = whom_to_preempt(sequence);
  if (victim == nullptr) return false;
  preempt(*victim);
  return true;
}

bool LaneImpl::demote_somebody(LaneSequence& sequence, uint64_t wanted_bytes) {
  std::vector<LaneSequence*> lower;
  for (const Owned& other : running_) {
    if (other->priority() < sequence.priority() && other->context) lower.push_back(other.get());
  }
  std::sort(lower.begin(), lower.end(), [](const LaneSequence* a, const LaneSequence* b) {
    return std::tuple(a->priority(), b->id()) < std::tuple(b->priority(), a->id());
  });
  for (LaneSequence* other : lower) {
    if (runtime_.shrink(other->context.number(), wanted_bytes) == 0) continue;
    ++other->result.demotions;
    ++n_demotions_;
    return true;
  }
  return false;
}

// The youngest of the lowest priority, `sequence` itself among equals; nobody when it is alone, or
// has been sent back too often. So the oldest of the highest priority always comes to its end.
LaneSequence* LaneImpl::whom_to_preempt(LaneSequence& sequence) {
  LaneSequence* victim = nullptr;
  for (const Owned& other : running_) {
    if (other->priority() > sequence.priority() || (!other->context && other.get() != &sequence))
      continue;
    if (victim == nullptr ||
        std::tuple(other->priority(), victim->id()) < std::tuple(victim->priority(), other->id())) {
      victim = other.get();
    }
  }
  if (victim != &sequence) return victim;
  const bool is_alone = std::none_of(running_.begin(), running_.end(), [&](const Owned& other) {
    return other.get() != &sequence && other->context;
  });
  return is_alone || sequence.preemptions >= kPreemptionsMax ? nullptr : victim;
}

// Back to the queue, at its old place in the order of arrival. What it has read may still be there
// as a kept prefix when it comes back; if not, it is read again.
void LaneImpl::preempt(LaneSequence& sequence) {
  keep_all(sequence);
  sequence.context.release();
  sequence.n_read = 0;
  sequence.share = {};
  sequence.room_tries = 0;
  ++sequence.preemptions;
  ++sequence.result.demotions;
  ++n_demotions_;
  holds_admission_ = true;
  Owned owned = remove_running(sequence);
  const MutexLock lock(&mutex_);
  queue_.put_back(owned->place);
  const uint64_t id = owned->id();
  waiting_.emplace(id, std::move(owned));
}

// When nobody else holds anything, to try again is in vain.
void LaneImpl::end_without_room(LaneSequence& sequence, const absl::Status& status) {
  const mri_memory_usage memory = runtime_.memory_usage();
  if (memory.budget_bytes == 0) return end(sequence, FinishReason::kError, status);
  if (!is_for_one(memory, sequence.context ? 1 : 0)) {
    return end(sequence, FinishReason::kError,
               absl::ResourceExhaustedError(absl::StrCat(
                   status.message(), "; of the ", memory.budget_bytes,
                   " bytes for keys and values ", "much is held by others: try again later")));
  }
  if (sequence.has_token) {
    if (auto rest = sequence.generation->rest()) sequence.sink->on_piece(*std::move(rest));
    return end(sequence, FinishReason::kLength, absl::OkStatus());
  }
  end(sequence, FinishReason::kError,
      absl::OutOfRangeError(absl::StrCat(
          "found a prompt of ", sequence.request.prompt.size(), " tokens; expected one that fits ",
          "the ", memory.budget_bytes, " bytes for keys and values of stack ", name_, ", which ",
          sequence.n_read, " of them filled with nobody else there: send less text")));
}

void LaneImpl::keep_all(LaneSequence& sequence) {
  if (!runtime_.memory || !sequence.request.keeps_prefix || !sequence.context) return;
  const auto keys = sequence.keys.extend(sequence.tokens);
  const size_t n_full = std::min<size_t>(keys.size(), sequence.n_read / kPrefixBlockTokens);
  sequence.context.keep(keys.first(n_full), false);
}

}  // namespace varve
