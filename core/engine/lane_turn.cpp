// What a step is made of.
#include <algorithm>
#include <utility>

#include "core/engine/lane_impl.h"

namespace varve {
namespace {

// Logits of all tokens of the prompt pieces of a step may take this much.
constexpr uint64_t kPromptLogitsBytesMax = uint64_t{64} << 20;
// While an urgent prompt is read, the others' answers get every second step, and their prompts
// every eighth.
constexpr uint64_t kAnswersTurn = 2;
constexpr uint64_t kEverybodysTurn = 8;

}  // namespace

void LaneImpl::turn() {
  pace_.set_limits({now_.stall_max, now_.step_ms_max});
  if (running_.empty()) holds_admission_ = false;
  const uint64_t now_us = clock_.now_us();
  std::vector<Share> shares = plan(now_us);
  start_picked(&shares);

  uint32_t n_decode = 0;
  uint64_t n_prompt = 0;
  for (const Share& share : shares) {
    if (share.sequence->is_answering()) {
      ++n_decode;
    } else {
      n_prompt += share.n_tokens;
    }
  }
  double ms = 0;
  for (size_t first = 0; first < shares.size();) {
    size_t end = first;
    while (end < shares.size() && shares[end].sub_batch == shares[first].sub_batch) ++end;
    ms += run_step({shares.begin() + static_cast<std::ptrdiff_t>(first),
                    shares.begin() + static_cast<std::ptrdiff_t>(end)});
    first = end;
  }
  if (!shares.empty()) pace_.measured(n_decode, n_prompt, ms);
}

uint32_t LaneImpl::lowest_priority() const {
  uint32_t lowest = UINT32_MAX;
  for (const Owned& sequence : running_) lowest = std::min(lowest, sequence->priority());
  return lowest;
}

// Another one is reading the same beginning: when it is done, this one need not read it again.
bool LaneImpl::shall_wait_for_prefix(const LaneSequence& waiting,
                                     const std::vector<LaneSequence*>& offered) const {
  if (!runtime_.memory || !waiting.shares()) return false;
  const auto is_read_by = [&](const LaneSequence& other) {
    if (other.is_prompt_told || !other.request.keeps_prefix || &other == &waiting) return false;
    const size_t common = n_common(waiting.keys.keys(), other.keys.keys());
    return common > 0 && 2 * common >= waiting.keys.keys().size();
  };
  return std::any_of(running_.begin(), running_.end(),
                     [&](const Owned& other) { return is_read_by(*other); }) ||
         std::any_of(offered.begin(), offered.end(),
                     [&](const LaneSequence* other) { return is_read_by(*other); });
}

// Those who may start now, in order of arrival: as many as there are free places, and some more of
// higher priority than somebody who runs.
std::vector<LaneSequence*> LaneImpl::offer(uint64_t now_us) {
  const auto n_running = static_cast<uint32_t>(running_.size());
  const uint32_t n_free = concurrency_ - std::min(concurrency_, n_running);
  const uint32_t n_places = concurrency_ + std::max(2u, concurrency_ / 4);
  const uint32_t n_extra = n_places - std::min(n_places, n_running + n_free);
  const uint32_t lowest = lowest_priority();
  std::vector<LaneSequence*> offered;
  const MutexLock lock(&mutex_);
  // The order takes time, and with a long queue most steps have no place to give away.
  const bool has_urgent =
      std::any_of(queue_.waiting().begin(), queue_.waiting().end(),
                  [&](const WaitingRequest& place) { return place.priority > lowest; });
  if (n_free == 0 && !(has_urgent && n_extra > 0)) return offered;
  for (const WaitingRequest* place : queue_.next(now_us, queue_.size())) {
    LaneSequence* sequence = waiting_.at(place->id).get();
    const bool is_urgent = place->priority > lowest;
    if (offered.size() >= n_free + (is_urgent ? n_extra : 0)) break;
    if (holds_admission_ && !is_urgent) continue;
    if (!shall_wait_for_prefix(*sequence, offered)) offered.push_back(sequence);
  }
  std::sort(offered.begin(), offered.end(),
            [](const LaneSequence* a, const LaneSequence* b) { return a->id() < b->id(); });
  return offered;
}

// Who of those that run takes part in this step, when the most urgent prompt has priority `top`.
std::vector<LaneSequence*> LaneImpl::presented(uint32_t top) {
  const bool is_urgent = !running_.empty() && lowest_priority() < top;
  n_urgent_turns_ = is_urgent ? n_urgent_turns_ + 1 : 0;
  const bool with_answers = n_urgent_turns_ % kAnswersTurn == 0;
  const bool with_all = n_urgent_turns_ % kEverybodysTurn == 0;
  std::vector<LaneSequence*> running;
  for (const Owned& sequence : running_) {
    if (with_all || sequence->priority() >= top || (with_answers && sequence->is_answering()))
      running.push_back(sequence.get());
  }
  return running;
}

BatchLimits LaneImpl::limits(const std::vector<LaneSequence*>& running,
                             const std::vector<LaneSequence*>& offered, uint32_t top) {
  BatchLimits limits;
  limits.sequences_max = static_cast<uint32_t>(running.size() + offered.size());
  uint32_t n_decode = 0;
  bool bounds_stall = false, has_prompt = !offered.empty();
  for (const LaneSequence* sequence : running) {
    if (sequence->is_answering()) {
      ++n_decode;
      bounds_stall = bounds_stall || sequence->priority() >= top;
    } else {
      has_prompt = true;
    }
  }
  const uint64_t granted = has_prompt ? pace_.grant(n_decode, bounds_stall) : 0;
  limits.step_tokens_max =
      std::max<uint64_t>(1, std::min<uint64_t>(now_.step_tokens_max, n_decode + granted));
  const mri_memory_usage memory = offered.empty() ? mri_memory_usage{} : runtime_.memory_usage();
  if (memory.budget_bytes == 0) return limits;
  // Kept prefixes make room, and so do those who are less important than whoever wants to start.
  uint64_t free = memory.budget_bytes - std::min(memory.budget_bytes, memory.used_bytes);
  free += memory.kept_bytes;
  for (const Owned& sequence : running_) {
    if (sequence->priority() < top) free += sequence->share.hot_bytes + sequence->share.warm_bytes;
  }
  limits.kv_bytes_free = free;
  return limits;
}

std::vector<LaneImpl::Share> LaneImpl::plan(uint64_t now_us) {
  const std::vector<LaneSequence*> offered = offer(now_us);
  uint32_t top = 0;
  for (const LaneSequence* sequence : offered) top = std::max(top, sequence->priority());
  for (const Owned& sequence : running_) {
    if (!sequence->is_answering()) top = std::max(top, sequence->priority());
  }
  const std::vector<LaneSequence*> running = presented(top);
  const BatchLimits limits_now = limits(running, offered, top);

  std::vector<LaneSequence*> all = offered;
  all.insert(all.end(), running.begin(), running.end());
  std::vector<mri_batch_request> requests;
  for (const LaneSequence* sequence : all) {
    mri_batch_request r{};
    r.id = sequence->id();
    r.age_us = now_us - std::min(now_us, sequence->arrived_us);
    r.kv_bytes =
        sequence->share.hot_bytes + sequence->share.warm_bytes + sequence->share.cold_bytes;
    r.prompt_tokens_left = sequence->is_answering() ? 0 : sequence->n_left();
    const uint64_t deadline_us = sequence->place.deadline_us;
    r.deadline_us =
        deadline_us == UINT64_MAX ? UINT64_MAX : deadline_us - std::min(deadline_us, now_us);
    r.priority = sequence->priority();
    r.context_tokens = static_cast<uint32_t>(std::min<uint64_t>(sequence->n_read, UINT32_MAX));
    r.running = sequence->context ? 1 : 0;
    requests.push_back(r);
  }
  std::vector<Share> shares;
  for (const mri_batch_pick& pick : batcher_.next_step(requests, limits_now))
    shares.push_back({all[pick.request], pick.n_tokens, pick.sub_batch});
  return shares;
}

// Moves those of the queue that were picked to the running ones and gives them a context. Whoever
// does not get one leaves `shares`, and so does whoever gave way.
void LaneImpl::start_picked(std::vector<Share>* shares) {
  for (const Share& share : *shares) {
    if (share.sequence->context) continue;
    const MutexLock lock(&mutex_);
    if (!queue_.take(share.sequence->id())) continue;  // a shadow request that was dropped just now
    running_.push_back(std::move(waiting_.extract(share.sequence->id()).mapped()));
  }
  for (const Share& share : *shares) {
    if (is_running(share.sequence) && !share.sequence->context) open(*share.sequence);
  }
  std::erase_if(*shares, [this](const Share& share) {
    return !is_running(share.sequence) || !share.sequence->context;
  });
  uint64_t n_rows = kPromptLogitsBytesMax / (model_.vocab_size * sizeof(float));
  for (Share& share : *shares) {
    const LaneSequence& sequence = *share.sequence;
    const bool wants_rows = sequence.wants_prompt_logprobs() && !sequence.is_prompt_told;
    share.n_tokens = tokens_of(sequence, share.n_tokens, wants_rows ? n_rows : UINT64_MAX);
    if (wants_rows) n_rows -= std::min(n_rows, share.n_tokens);
  }
}

// A piece ends with the prompt, so that the runtime knows what is prompt and what is answer.
uint64_t LaneImpl::tokens_of(const LaneSequence& sequence, uint64_t n_granted,
                             uint64_t n_max) const {
  uint64_t n = std::min({n_granted, sequence.n_left(), n_max});
  if (!sequence.is_prompt_read())
    n = std::min<uint64_t>(n, sequence.request.prompt.size() - sequence.n_read);
  return std::max<uint64_t>(1, n);
}

}  // namespace varve
