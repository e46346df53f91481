#include "core/engine/lane.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/engine/lane_impl.h"
#include "core/engine/mri_status.h"

namespace varve {
namespace {

constexpr uint32_t kQueueMax = 200;
constexpr uint32_t kQueuePerPlace = 3;
constexpr absl::Duration kRetryMax = absl::Seconds(60);

WaitingRequest place_of(const GenerateRequest& request, uint64_t now_us, uint64_t deadline_us) {
  WaitingRequest place;
  place.tenant = request.tenant;
  place.is_shadow = request.is_shadow;
  place.priority = request.is_shadow ? 0 : std::min(request.priority, UINT32_MAX - 1) + 1;
  place.cost_tokens = request.prompt.size();
  place.arrived_us = now_us;
  place.deadline_us = deadline_us;
  return place;
}

}  // namespace

uint64_t LaneClock::now_us() const {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::steady_clock::now() - steady_)
                                   .count());
}

uint64_t LaneClock::deadline_us(absl::Time deadline) const {
  if (deadline == absl::InfiniteFuture()) return UINT64_MAX;
  const int64_t left = absl::ToInt64Microseconds(deadline - absl::Now());
  return now_us() + static_cast<uint64_t>(std::max<int64_t>(0, left));
}

absl::StatusOr<std::unique_ptr<Lane>> Lane::start(LaneOptions options, std::shared_ptr<Stack> stack,
                                                  Turnstile* turnstile) {
  if (!stack->runtime() || !stack->text()) {
    return absl::InvalidArgumentError(absl::StrCat("stack ", options.name, ": found no runtime ",
                                                   "with " MRI_TEXT "; a lane needs one"));
  }
  const Text text(stack->text().table, stack->text().self);
  const absl::StatusOr<mri_model_info> model = text.model_info();
  if (!model.ok()) return model.status();
  if (model->vocab_size == 0 || model->vocab_size > INT32_MAX) {
    return absl::InternalError(absl::StrCat("stack ", options.name, ": the runtime tells of ",
                                            model->vocab_size, " tokens in the vocabulary"));
  }
  return std::make_unique<LaneImpl>(std::move(options), std::move(stack), turnstile, *model, text);
}

LaneImpl::LaneImpl(LaneOptions options, std::shared_ptr<Stack> stack, Turnstile* turnstile,
                   const mri_model_info& model, Text text)
    : stack_(std::move(stack)),
      runtime_(*stack_),
      text_(text),
      model_(model),
      name_(options.name),
      digest_(options.digest),
      turnstile_(*turnstile),
      options_(std::move(options)),
      queue_(QueueOptions{}),
      batcher_(stack_->batching()),
      pace_({}) {
  for (uint64_t t = 0; t < model_.vocab_size; ++t) {
    if (text_.is_end(static_cast<int32_t>(t))) end_tokens_.push_back(static_cast<int32_t>(t));
  }
  {
    const MutexLock lock(&mutex_);
    concurrency_ = std::max(1u, options_.concurrency);
    queue_.set_capacity(queue_max());
    status_.concurrency = concurrency_;
    status_.queue_max = queue_max();
  }
  thread_ = std::thread([this] { run(); });
}

LaneImpl::~LaneImpl() {
  {
    const MutexLock lock(&mutex_);
    is_draining_ = is_aborting_ = stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

uint32_t LaneImpl::queue_max() const {
  if (options_.queue_max > 0) return options_.queue_max;
  return std::min<uint64_t>(kQueueMax,
                            uint64_t{kQueuePerPlace} * std::max(1u, options_.concurrency));
}

absl::Status LaneImpl::check(const GenerateRequest& request) const {
  if (request.prompt.empty())
    return absl::InvalidArgumentError("found an empty prompt; expected at least one token");
  for (const int32_t token : request.prompt) {
    if (token >= 0 && static_cast<uint64_t>(token) < model_.vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "found token ", token, " in the prompt; expected 0 to ", model_.vocab_size - 1));
  }
  const uint64_t limit = model_.max_tokens == 0 ? UINT64_MAX : model_.max_tokens;
  const uint64_t least = request.prompt.size() + (request.max_tokens > 0 ? 1 : 0);
  if (least <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("found a prompt of ", request.prompt.size(), " tokens; expected at most ",
                   limit - (request.max_tokens > 0 ? 1 : 0), ", what the model's memory holds"));
}

absl::StatusOr<LaneImpl::Owned> LaneImpl::make_sequence(GenerateRequest request,
                                                        std::shared_ptr<GenerateSink> sink,
                                                        CancelFlag cancel) {
  if (const absl::Status status = check(request); !status.ok()) return status;
  std::unique_ptr<Generation> generation;
  const uint64_t limit = model_.max_tokens == 0 ? UINT64_MAX : model_.max_tokens;
  const uint64_t answer_max = std::min(request.max_tokens, limit - request.prompt.size());
  if (request.max_tokens > 0) {
    absl::StatusOr<std::unique_ptr<Sampler>> sampler =
        Sampler::make(request.sampling, stack_->sampling(), model_.vocab_size);
    if (!sampler.ok()) return sampler.status();
    const std::span<const int32_t> prompt(request.prompt);
    const size_t n_seen = std::min<size_t>(prompt.size(), request.sampling.penalty_tokens);
    if (const absl::Status s = (*sampler)->accept(prompt.last(n_seen)); !s.ok()) return s;
    GenerationLimits limits;
    limits.max_tokens = answer_max;
    // A grammar says where the answer ends; an end it asks for cannot be put off.
    limits.min_tokens = request.sampling.grammar.empty() ? request.min_tokens : 0;
    limits.ignore_end = request.ignore_end;
    limits.stop = request.stop;
    limits.n_logprobs = request.n_logprobs;
    generation =
        std::make_unique<Generation>(std::move(limits), *std::move(sampler), &text_, &end_tokens_);
  }
  PrefixKeys keys(digest_, request.tenant);
  if (runtime_.memory && request.keeps_prefix) keys.extend(request.prompt);
  auto sequence = std::make_unique<LaneSequence>(std::move(request), std::move(sink),
                                                 std::move(cancel), std::move(keys));
  sequence->generation = std::move(generation);
  sequence->tokens = sequence->request.prompt;
  sequence->tokens_max = sequence->tokens.size() + answer_max;
  sequence->result.prompt_tokens = sequence->tokens.size();
  sequence->result.arrived = sequence->result.started = sequence->result.first_token =
      absl::InfinitePast();
  return sequence;
}

absl::Status LaneImpl::submit(GenerateRequest request, std::shared_ptr<GenerateSink> sink,
                              CancelFlag cancel) {
  absl::StatusOr<Owned> made =
      make_sequence(std::move(request), std::move(sink), std::move(cancel));
  if (!made.ok()) return made.status();
  Owned sequence = *std::move(made);
  const uint64_t now_us = clock_.now_us();
  sequence->arrived_us = now_us;
  sequence->result.arrived = clock_.time(now_us);
  sequence->place =
      place_of(sequence->request, now_us, clock_.deadline_us(sequence->request.deadline));
  {
    const MutexLock lock(&mutex_);
    if (is_draining_) {
      return absl::UnavailableError(
          absl::StrCat("stack ", name_, " is shutting down and takes no new requests"));
    }
    const bool has_room = queue_.size() == 0 && n_alive_ < std::max(1u, options_.concurrency);
    sequence->place.id = ++last_id_;
    WaitQueue::Pushed pushed;
    if (!sequence->place.is_shadow || has_room) pushed = queue_.push(sequence->place);
    if (pushed.dropped.has_value()) {
      auto dropped = waiting_.extract(*pushed.dropped);
      dropped_.push_back(std::move(dropped.mapped()));
    }
    if (!pushed.accepted) {
      return absl::ResourceExhaustedError(
          absl::StrCat("stack ", name_, ": found ", queue_.size(), " requests waiting; at most ",
                       sequence->place.is_shadow ? 0 : queue_.capacity(), " may"));
    }
    ++n_alive_;
    waiting_.emplace(sequence->id(), std::move(sequence));
  }
  changed_.notify_all();
  return absl::OkStatus();
}

absl::Duration LaneImpl::retry_after() const {
  const MutexLock lock(&mutex_);
  const double places = std::max(1u, status_.concurrency);
  const double seconds = static_cast<double>(queue_.size() + 1) * service_s_ / places;
  return std::clamp(absl::Seconds(seconds), absl::Seconds(1), kRetryMax);
}

LaneStatus LaneImpl::status() const {
  const mri_memory_usage memory = runtime_.memory_usage();
  const uint64_t now_us = clock_.now_us();
  const MutexLock lock(&mutex_);
  LaneStatus status = status_;
  status.waiting = static_cast<uint32_t>(queue_.size());
  status.running = static_cast<uint32_t>(n_alive_ - queue_.size() - dropped_.size());
  status.queue_max = queue_max();
  status.step_clips = batcher_.clips();
  if (last_progress_us_ > 0)
    status.since_progress = absl::Microseconds(static_cast<int64_t>(now_us - last_progress_us_));
  if (queue_.size() > 0) {
    const uint64_t oldest_us = queue_.waiting().front().arrived_us;
    status.oldest_wait = absl::Microseconds(static_cast<int64_t>(now_us - oldest_us));
  }
  status.hot_limit_tokens = options_.hot_limit_tokens * status.running;
  status.kept_prefix_bytes = memory.kept_bytes;
  status.budget_bytes = memory.budget_bytes;
  status.used_bytes = memory.used_bytes;
  return status;
}

void LaneImpl::drain(absl::Time deadline) {
  const uint64_t until_us = clock_.deadline_us(deadline);
  const MutexLock lock(&mutex_);
  is_draining_ = true;
  while (n_alive_ > 0 && !is_aborting_) {
    const uint64_t now_us = clock_.now_us();
    if (now_us >= until_us) is_aborting_ = true;
    const uint64_t left_us = std::min<uint64_t>(until_us - std::min(until_us, now_us), 1'000'000);
    if (!is_aborting_) changed_.wait_for(mutex_, std::chrono::microseconds(left_us));
  }
  is_aborting_ = true;
  changed_.notify_all();
  while (n_alive_ > 0) changed_.wait(mutex_);
}

void LaneImpl::reconfigure(const LaneOptions& options) {
  {
    const MutexLock lock(&mutex_);
    LaneOptions changed = options;
    changed.name = name_;
    changed.digest = digest_;
    changed.hot_limit_tokens = options_.hot_limit_tokens;
    options_ = std::move(changed);
    queue_.set_capacity(queue_max());
  }
  changed_.notify_all();
}

absl::Status LaneImpl::forget_prefix(const std::string& tenant, std::vector<int32_t> prompt) {
  if (!runtime_.memory)
    return absl::UnimplementedError(
        absl::StrCat("stack ", name_, ": its runtime keeps no prefixes"));
  PrefixKeys chain(digest_, tenant);
  const std::span<const mri_prefix_key> keys = chain.extend(prompt);
  if (keys.empty()) return absl::NotFoundError("a prompt of less than one block is not kept");
  mri_error error = empty_error();
  const mri_status status =
      runtime_.memory.table->forget(runtime_.memory.self, &keys.back(), &error);
  return status == MRI_OK ? absl::OkStatus() : to_status("forget", status, error);
}

// The lane's thread.

void LaneImpl::run() {
  while (wait_for_work()) {
    try {
      sweep();
      adapt();
      turn();
    } catch (const std::exception& e) {
      // Out of memory for the lane's own lists: whoever runs has lost a step.
      while (!running_.empty())
        end(*running_.back(), FinishReason::kError, absl::ResourceExhaustedError(e.what()));
    }
    publish();
  }
}

bool LaneImpl::wait_for_work() {
  const MutexLock lock(&mutex_);
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !running_.empty() || !waiting_.empty() || !dropped_.empty();
  };
  if (!has_work()) pass_.reset();
  while (!has_work() && !stops_) changed_.wait(mutex_);
  now_ = options_;
  return has_work();
}

// Ends those who were cancelled, are late, or must go since the lane ends.
void LaneImpl::sweep() {
  bool aborts = false;
  std::vector<std::pair<Owned, absl::Status>> gone;
  const uint64_t now_us = clock_.now_us();
  const absl::Status late = absl::DeadlineExceededError("the request's time is over");
  const absl::Status shut = absl::UnavailableError("the server is shutting down");
  const absl::Status cancelled = absl::CancelledError("cancelled by the caller");
  {
    const MutexLock lock(&mutex_);
    aborts = is_aborting_;
    for (auto& dropped : dropped_) {
      gone.emplace_back(std::move(dropped),
                        absl::UnavailableError("a replayed request made room for a client's"));
    }
    dropped_.clear();
    std::vector<std::pair<uint64_t, const absl::Status*>> ids;
    for (const uint64_t id : queue_.take_expired(now_us)) ids.emplace_back(id, &late);
    for (const WaitingRequest& place : queue_.waiting()) {
      if (aborts) {
        ids.emplace_back(place.id, &shut);
      } else if (waiting_.at(place.id)->is_cancelled()) {
        ids.emplace_back(place.id, &cancelled);
      }
    }
    for (const auto& [id, status] : ids) {
      queue_.erase(id);
      gone.emplace_back(std::move(waiting_.extract(id).mapped()), *status);
    }
  }
  for (auto& [sequence, status] : gone) {
    sequence->result.reason =
        absl::IsCancelled(status) ? FinishReason::kCancelled : FinishReason::kError;
    sequence->result.status = status;
    tell_end(*sequence);
  }
  for (size_t i = running_.size(); i-- > 0;) {
    LaneSequence& sequence = *running_[i];
    if (aborts) {
      end(sequence, FinishReason::kError, shut);
    } else if (sequence.is_cancelled()) {
      end(sequence, FinishReason::kCancelled, cancelled);
    } else if (sequence.place.deadline_us <= now_us) {
      end(sequence, FinishReason::kError, late);
    }
  }
}

// Places grow with the queue; summaries are left out at peak.
void LaneImpl::adapt() {
  const MutexLock lock(&mutex_);
  const uint64_t percent = queue_.size() * 100 / std::max<size_t>(1, queue_.capacity());
  const uint32_t least = std::max(1u, now_.concurrency);
  const uint32_t most = std::max(least, now_.concurrency_max);
  if (percent >= 80) ++concurrency_;
  if (percent < 20 && concurrency_ > least) --concurrency_;
  concurrency_ = std::clamp(concurrency_, least, most);
  if (now_.peak_queue_percent == 0) {
    is_peak_ = false;
  } else if (percent >= now_.peak_queue_percent) {
    is_peak_ = true;
  } else if (percent * 2 < now_.peak_queue_percent) {
    is_peak_ = false;
  }
}

void LaneImpl::publish() {
  mri_kv_usage usage{};
  for (const Owned& sequence : running_) {
    const mri_kv_usage& share = sequence->share;
    usage.hot_bytes += share.hot_bytes;
    usage.warm_bytes += share.warm_bytes;
    usage.cold_bytes += share.cold_bytes;
    usage.backing_bytes += share.backing_bytes;
    usage.bf16_bytes += share.bf16_bytes;
    usage.hot_tokens += share.hot_tokens;
    usage.warm_tokens += share.warm_tokens;
    usage.cold_tokens += share.cold_tokens;
  }
  const MutexLock lock(&mutex_);
  status_.concurrency = concurrency_;
  status_.steps = n_steps_;
  status_.peak = is_peak_;
  status_.usage = usage;
  status_.demotions = n_demotions_;
  if (!std::exchange(has_progress_, false)) return;
  ++status_.progress;
  last_progress_us_ = std::max<uint64_t>(1, clock_.now_us());
}

}  // namespace varve
