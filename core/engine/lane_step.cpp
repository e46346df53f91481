// Running a step and telling what came of it.
#include <algorithm>
#include <atomic>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/engine/lane_impl.h"
#include "core/engine/mri_status.h"

namespace varve {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

constexpr double kNewShare = 0.1;

mri_kv_usage part_of(const mri_kv_usage& whole, double part) {
  const auto of = [part](uint64_t n) {
    return static_cast<uint64_t>(part * static_cast<double>(n));
  };
  return {of(whole.hot_bytes),     of(whole.warm_bytes), of(whole.cold_bytes),
          of(whole.backing_bytes), of(whole.bf16_bytes), of(whole.hot_tokens),
          of(whole.warm_tokens),   of(whole.cold_tokens)};
}

}  // namespace

bool LaneImpl::is_running(const LaneSequence* sequence) const {
  return std::any_of(running_.begin(), running_.end(),
                     [&](const Owned& other) { return other.get() == sequence; });
}

// Returns how long the runtime took, ms.
double LaneImpl::run_step(std::vector<Share> shares) {
  // A sub-batch before may have ended somebody, or sent somebody back.
  std::erase_if(shares, [this](const Share& share) {
    return !is_running(share.sequence) || !share.sequence->context;
  });
  if (shares.empty()) return 0;
  const size_t n_vocabulary = model_.vocab_size;
  std::vector<mri_step_seq> seqs;
  std::vector<size_t> first_row = {0};  // of logits; the last one: how many there are
  uint32_t priority = 0;
  for (const Share& share : shares) {
    const LaneSequence& sequence = *share.sequence;
    const uint64_t prompt_size = sequence.request.prompt.size();
    const uint64_t end = sequence.n_read + share.n_tokens;
    mri_step_seq seq{};
    seq.ctx = sequence.context.number();
    seq.tokens = sequence.tokens.data() + sequence.n_read;
    seq.n_tokens = share.n_tokens;
    if (!sequence.is_prompt_read()) seq.flags |= MRI_STEP_PROMPT;
    if (!sequence.is_prompt_read() && end < prompt_size) seq.flags |= MRI_STEP_MORE;
    const auto& peak = now_.peak_classes;
    if (is_peak_ && std::find(peak.begin(), peak.end(), sequence.request.class_name) != peak.end())
      seq.flags |= MRI_STEP_NO_SUMMARIES;
    seq.all_logits = sequence.wants_prompt_logprobs() && !sequence.is_prompt_told ? 1 : 0;
    const uint64_t n_rows = seq.all_logits != 0             ? share.n_tokens
                            : end == sequence.tokens.size() ? 1
                                                            : 0;
    first_row.push_back(first_row.back() + n_rows);
    priority = std::max(priority, sequence.priority());
    seqs.push_back(seq);
  }
  logits_.resize(std::max(logits_.size(), first_row.back() * n_vocabulary));
  for (size_t i = 0; i < seqs.size(); ++i) {
    if (first_row[i + 1] > first_row[i])
      seqs[i].logits = logits_.data() + first_row[i] * n_vocabulary;
  }
  if (pass_.has_value()) {
    pass_->renew(priority);
  } else {
    pass_.emplace(turnstile_, priority);
  }
  // A cancel stops all of a step: it is handed on only where there is nobody else.
  const CancelFlag& cancel = shares.front().sequence->cancel;
  const bool is_alone = shares.size() == 1 && cancel != nullptr;
  mri_kv_usage usage{};
  mri_error error{};
  const uint64_t began_us = clock_.now_us();
  const absl::Status whole = runtime_.step(
      seqs, ++n_steps_, is_alone ? reinterpret_cast<const uint32_t*>(cancel.get()) : nullptr,
      &usage, &error);
  const double ms = static_cast<double>(clock_.now_us() - began_us) / 1000;
  if (!whole.ok()) {
    fail_whole(std::move(shares), whole);
    return ms;
  }
  settle(shares, seqs, first_row, usage, error);
  return ms;
}

// The call failed for all: whose fault it is shows when each goes alone.
void LaneImpl::fail_whole(std::vector<Share> shares, const absl::Status& status) {
  if (shares.size() > 1) {
    for (const Share& share : shares) run_step({share});
    return;
  }
  fail_one(shares.front(), status);
}

void LaneImpl::fail_one(const Share& share, const absl::Status& status) {
  LaneSequence& sequence = *share.sequence;
  if (absl::IsCancelled(status)) {
    end(sequence, FinishReason::kCancelled, status);
  } else if (!absl::IsResourceExhausted(status)) {
    sequence.context.release();  // what it holds now is not known
    end(sequence, FinishReason::kError, status);
  } else if (!make_room(sequence, share.n_tokens)) {
    end_without_room(sequence, status);
  }
}

void LaneImpl::settle(const std::vector<Share>& shares, const std::vector<mri_step_seq>& seqs,
                      const std::vector<size_t>& first_row, const mri_kv_usage& usage,
                      const mri_error& error) {
  double n_all = 0;
  for (const Share& share : shares)
    n_all += static_cast<double>(share.sequence->n_read + share.n_tokens);
  std::vector<std::optional<Drawn>> drawn = draw_all(shares, seqs);
  std::vector<std::pair<Share, absl::Status>> failed;
  for (size_t i = 0; i < shares.size(); ++i) {
    LaneSequence& sequence = *shares[i].sequence;
    if (seqs[i].status != MRI_OK) {
      failed.emplace_back(shares[i], to_status("forward_step", seqs[i].status, error));
      continue;
    }
    if (seqs[i].position != sequence.n_read) {
      failed.emplace_back(shares[i], absl::InternalError(absl::StrCat(
                                         "forward_step: the runtime appended at position ",
                                         seqs[i].position, "; expected ", sequence.n_read)));
      continue;
    }
    sequence.room_tries = 0;
    sequence.share =
        part_of(usage, static_cast<double>(sequence.n_read + shares[i].n_tokens) / n_all);
    has_progress_ = true;
    const size_t n_rows = first_row[i + 1] - first_row[i];
    try {
      const auto rows =
          std::span(logits_).subspan(first_row[i] * model_.vocab_size, n_rows * model_.vocab_size);
      advance(sequence, shares[i].n_tokens, rows, std::move(drawn[i]));
    } catch (const std::exception& e) {
      end(sequence, FinishReason::kError, absl::InternalError(e.what()));
    }
  }
  // Last: making room may send others back, who have their token by now.
  for (const auto& [share, status] : failed) {
    if (is_running(share.sequence)) fail_one(share, status);
  }
}

// task(i) for each i in [0, n) on the stack's threads. It must not throw.
template <class Task>
void LaneImpl::in_parallel(size_t n, Task task) {
  ThreadPool* threads = stack_->threads();
  if (threads == nullptr || n <= 1) {
    for (size_t i = 0; i < n; ++i) task(i);
    return;
  }
  threads->parallel_for(
      n, [](void* user, uint64_t i, uint32_t) { (*static_cast<Task*>(user))(i); }, &task);
}

// The next token of everybody whose text was read to its end.
std::vector<std::optional<LaneImpl::Drawn>> LaneImpl::draw_all(
    const std::vector<Share>& shares, const std::vector<mri_step_seq>& seqs) {
  std::vector<std::optional<Drawn>> drawn(shares.size());
  in_parallel(shares.size(), [&](size_t i) {
    const LaneSequence& sequence = *shares[i].sequence;
    const mri_step_seq& seq = seqs[i];
    if (seq.status != MRI_OK || seq.position != sequence.n_read || sequence.generation == nullptr ||
        sequence.n_left() > seq.n_tokens) {
      return;
    }
    const size_t last_row = seq.all_logits != 0 ? seq.n_tokens - 1 : 0;
    const std::span<float> logits(seq.logits + last_row * model_.vocab_size, model_.vocab_size);
    try {
      drawn[i] = sequence.generation->next(logits);
    } catch (const std::exception& e) {
      drawn[i] = absl::InternalError(e.what());
    }
  });
  return drawn;
}

// `logits`: of all tokens where prompt logprobs are wanted. `drawn`: when the text was read to its
// end.
void LaneImpl::advance(LaneSequence& sequence, uint64_t n_tokens, std::span<float> logits,
                       std::optional<Drawn> drawn) {
  if (sequence.wants_prompt_logprobs() && !sequence.is_prompt_told)
    prompt_logprobs(sequence, n_tokens, logits);
  sequence.n_read += n_tokens;
  const uint64_t n_done = std::min<uint64_t>(sequence.n_read, sequence.request.prompt.size());
  if (n_done > sequence.n_progress_told) {  // not again what a preempted sequence reads again
    sequence.n_progress_told = n_done;
    sequence.sink->on_prompt_progress(n_done, sequence.request.prompt.size(),
                                      sequence.result.cached_tokens);
  }
  if (sequence.is_prompt_read() && !sequence.is_prompt_told) prompt_done(sequence);
  if (sequence.n_left() > 0) return;
  if (sequence.generation == nullptr) {
    end(sequence, FinishReason::kLength, absl::OkStatus());
    return;
  }
  if (drawn.has_value()) tell_drawn(sequence, *std::move(drawn));
}

// Row i tells of the token after token n_read + i. What a preempted sequence learnt before is not
// computed again.
void LaneImpl::prompt_logprobs(LaneSequence& sequence, uint64_t n_tokens, std::span<float> logits) {
  const std::vector<int32_t>& prompt = sequence.request.prompt;
  std::vector<TokenLogprob>& told = sequence.prompt_logprobs;
  const size_t n_told = told.size();
  const size_t end = std::min<size_t>(prompt.size() - 1, sequence.n_read + n_tokens);
  if (end <= n_told) return;
  told.resize(end);
  std::atomic<bool> failed{false};
  in_parallel(end - n_told, [&](size_t i) {
    const size_t position = n_told + i;
    try {
      told[position] = token_logprob(
          logits.subspan((position - sequence.n_read) * model_.vocab_size, model_.vocab_size),
          prompt[position + 1], static_cast<uint32_t>(sequence.request.n_prompt_logprobs));
    } catch (const std::exception&) {
      failed = true;
    }
  });
  if (failed) throw std::bad_alloc();
}

void LaneImpl::prompt_done(LaneSequence& sequence) {
  sequence.is_prompt_told = true;
  if (runtime_.memory && sequence.request.keeps_prefix) {
    const size_t n_full = sequence.request.prompt.size() / kPrefixBlockTokens;
    const auto keys = sequence.keys.extend(sequence.tokens);
    sequence.context.keep(keys.first(std::min(keys.size(), n_full)), sequence.request.pins_prefix);
  }
  if (sequence.wants_prompt_logprobs())
    sequence.sink->on_prompt_logprobs(std::move(sequence.prompt_logprobs));
}

void LaneImpl::tell_drawn(LaneSequence& sequence, Drawn next) {
  if (!next.ok()) {
    end(sequence, FinishReason::kError, next.status());
    return;
  }
  const uint64_t now_us = clock_.now_us();
  const uint64_t n_before =
      std::exchange(sequence.result.output_tokens, sequence.generation->n_tokens());
  if (!sequence.has_token) {
    sequence.has_token = true;
    sequence.result.first_token = clock_.time(now_us);
  } else if (sequence.result.output_tokens > n_before) {
    sequence.result.token_gaps_ms.push_back(static_cast<float>(now_us - sequence.last_token_us) /
                                            1000);
  }
  sequence.last_token_us = now_us;
  if (next->token.has_value()) sequence.tokens.push_back(*next->token);
  if (next->piece.has_value()) sequence.sink->on_piece(*std::move(next->piece));
  if (!next->end.has_value()) return;
  sequence.result.stop = std::move(next->stop);
  end(sequence, *next->end, absl::OkStatus());
}

LaneImpl::Owned LaneImpl::remove_running(const LaneSequence& sequence) {
  const auto it = std::find_if(running_.begin(), running_.end(),
                               [&](const Owned& other) { return other.get() == &sequence; });
  Owned owned = std::move(*it);
  running_.erase(it);
  return owned;
}

// The end of a running sequence; its memory may serve others of its tenant.
void LaneImpl::end(LaneSequence& sequence, FinishReason reason, absl::Status status) {
  const Owned owned = remove_running(sequence);
  holds_admission_ = false;
  owned->result.reason = reason;
  owned->result.status = std::move(status);
  try {
    keep_all(*owned);
  } catch (const std::exception&) {
    // No memory for the keys: nothing is kept.
  }
  owned->result.usage = owned->context.usage();
  if (owned->result.has_timings)
    owned->result.has_timings = owned->context.read_timings(&owned->result.timings);
  owned->context.release();
  tell_end(*owned);
}

void LaneImpl::tell_end(LaneSequence& sequence) {
  const uint64_t now_us = clock_.now_us();
  sequence.result.ended = clock_.time(now_us);
  try {
    sequence.sink->on_end(sequence.result);
  } catch (...) {
    // There is nobody left to tell.
  }
  const MutexLock lock(&mutex_);
  --n_alive_;
  if (sequence.has_started) {
    const double seconds = static_cast<double>(now_us - sequence.started_us) / 1e6;
    service_s_ = service_s_ == 0 ? seconds : service_s_ + kNewShare * (seconds - service_s_);
    const uint64_t n_answer = sequence.result.output_tokens;
    queue_.charge(sequence.request.tenant, n_answer);
  }
  changed_.notify_all();
}

}  // namespace varve
