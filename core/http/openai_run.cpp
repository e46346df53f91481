#include "core/http/openai_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/mutex.h"
#include "core/http/openai_answer.h"
#include "core/http/request_json.h"
#include "core/http/sse.h"

namespace varve::http {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// One sequence. Only its sink touches it, and, when all have ended, whoever answers.
struct Choice {
  explicit Choice(const Text* names) : offsets(names) {}

  const Prompt* prompt = nullptr;
  std::string text;
  std::vector<TokenLogprob> prompt_logprobs, logprobs;
  CompletionLogprobs offsets;  // streamed completions
  uint64_t n_pieces = 0, cached_tokens = 0;
  GenerateResult result;

  double mean_logprob() const {
    double sum = 0;
    for (const TokenLogprob& token : logprobs) sum += token.logprob;
    return logprobs.empty() ? 0 : sum / static_cast<double>(logprobs.size());
  }
};

const char* reason_name(const GenerateResult& result) {
  return result.reason == FinishReason::kLength ? "length" : "stop";
}

uint64_t random_seed() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

class Run : public std::enable_shared_from_this<Run> {
 public:
  Run(RunParts parts, std::shared_ptr<Responder> responder);
  void submit();

  void on_progress(size_t index, uint64_t done, uint64_t n, uint64_t cached);
  void on_prompt_logprobs(size_t index, std::vector<TokenLogprob> logprobs);
  void on_piece(size_t index, Piece piece);
  void on_end(size_t index, const GenerateResult& result);

 private:
  const Text& text() const { return parts_.placement.lane->text(); }
  GenerateRequest request_of(const Prompt& prompt, uint64_t index) const;
  void fail(const absl::Status& status);
  void ended();
  void emit(const json& chunk);
  void open_stream();

  json chunk(size_t index, json choice, bool is_last) const;
  json piece_choice(size_t index, std::string piece, const std::vector<TokenLogprob>& logprobs);
  void emit_echo(size_t index);
  void add_echo_logprobs(const Choice& choice, CompletionLogprobs* logprobs) const;

  void finish_stream();
  void finish_whole();
  json whole_choice(const Choice& choice) const;
  std::vector<const Choice*> answered() const;
  Usage usage() const;

  RunParts parts_;
  const std::shared_ptr<Responder> responder_;
  const CancelFlag cancel_ = std::make_shared<std::atomic<uint32_t>>(0);
  const Clock::time_point start_ = Clock::now();
  AnswerHead head_;
  json chunk_head_;
  std::shared_ptr<EventStream> stream_;  // null: answered whole
  std::vector<Choice> choices_;
  std::atomic<size_t> n_open_;

  Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  // Until all choices are queued nothing is sent: a full queue is then still a 429.
  bool is_open_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> early_ ABSL_GUARDED_BY(mutex_);
};

class Sink final : public GenerateSink {
 public:
  Sink(std::shared_ptr<Run> run, size_t index) : run_(std::move(run)), index_(index) {}
  void on_prompt_progress(uint64_t done, uint64_t n, uint64_t cached) override {
    run_->on_progress(index_, done, n, cached);
  }
  void on_prompt_logprobs(std::vector<TokenLogprob> logprobs) override {
    run_->on_prompt_logprobs(index_, std::move(logprobs));
  }
  void on_piece(Piece piece) override { run_->on_piece(index_, std::move(piece)); }
  void on_end(const GenerateResult& result) override { run_->on_end(index_, result); }

 private:
  const std::shared_ptr<Run> run_;
  const size_t index_;
};

Run::Run(RunParts parts, std::shared_ptr<Responder> responder)
    : parts_(std::move(parts)), responder_(std::move(responder)) {
  const GenerateCall& call = parts_.call;
  head_.is_chat = call.is_chat;
  head_.id = absl::StrCat(call.is_chat ? "chatcmpl-" : "cmpl-", parts_.request_id);
  head_.model = parts_.model_name;
  head_.fingerprint = parts_.fingerprint;
  const bool is_own_tier = call.service_tier.empty() || call.service_tier == "auto";
  head_.service_tier = is_own_tier ? "default" : call.service_tier;
  head_.created_s = absl::ToUnixSeconds(absl::Now());
  chunk_head_ = head_.to_json(true);
  for (const Prompt& prompt : parts_.prompts) {
    for (uint32_t i = 0; i < call.best_of; ++i) choices_.emplace_back(&text()).prompt = &prompt;
  }
  n_open_ = choices_.size();
  if (!parts_.call.has_seed) parts_.call.sampling.seed = random_seed();
  if (call.stream) {
    stream_ = EventStream::start(responder_, parts_.ping_interval,
                                 placement_headers(parts_.arrival, parts_.placement));
  }
}

GenerateRequest Run::request_of(const Prompt& prompt, uint64_t index) const {
  const GenerateCall& call = parts_.call;
  GenerateRequest request;
  request.id = parts_.request_id;
  request.prompt = prompt.tokens;
  request.sampling = call.sampling;
  request.sampling.seed += index;
  request.max_tokens = answer_limit(call, parts_.placement, prompt.tokens.size());
  request.min_tokens = std::min(call.min_tokens, request.max_tokens);
  request.ignore_end = call.ignore_end;
  request.stop = call.stop;
  request.n_logprobs = call.best_of > call.n ? std::max(call.n_logprobs, 0) : call.n_logprobs;
  request.n_prompt_logprobs = call.echo ? call.n_logprobs : -1;
  // Whoever scores a prompt counts on one token after it, also where that would be an end token.
  if (request.n_prompt_logprobs >= 0 && request.max_tokens == 1) request.ignore_end = true;
  request.wants_timings = call.return_timings;
  request.keeps_prefix = call.keeps_prefix;
  return request;
}

void Run::submit() {
  responder_->on_gone([cancel = cancel_] { cancel->store(1); });
  for (size_t i = 0; i < choices_.size(); ++i) {
    const absl::Status status = parts_.dispatcher->submit(
        parts_.arrival, parts_.placement, request_of(*choices_[i].prompt, i % parts_.call.best_of),
        std::make_shared<Sink>(shared_from_this(), i), cancel_);
    if (status.ok()) continue;
    // What is left to be wrong with a request that was parsed is its grammar.
    fail(absl::IsInvalidArgument(status) ? with_param(status, parts_.call.grammar_param) : status);
    const size_t n_left = choices_.size() - i;
    if (n_open_.fetch_sub(n_left) == n_left) ended();
    return;
  }
  if (stream_ != nullptr) open_stream();
}

// The first failure counts; the others are its consequence.
void Run::fail(const absl::Status& status) {
  {
    const MutexLock lock(&mutex_);
    if (failure_.ok()) failure_ = status;
  }
  cancel_->store(1);
}

void Run::open_stream() {
  const MutexLock lock(&mutex_);
  is_open_ = true;
  for (const std::string& event : early_) stream_->data(event);
  early_.clear();
}

void Run::emit(const json& chunk) {
  std::string event = dump(chunk);
  const MutexLock lock(&mutex_);
  if (is_open_) {
    stream_->data(event);
  } else {
    early_.push_back(std::move(event));
  }
}

json Run::chunk(size_t index, json choice, bool is_last) const {
  json whole = chunk_head_;
  choice["index"] = index;
  const Choice& state = choices_[index];
  choice["finish_reason"] = nullptr;
  if (is_last) choice["finish_reason"] = reason_name(state.result);
  whole["choices"].push_back(std::move(choice));
  if (parts_.call.continuous_usage)
    whole["usage"] =
        Usage{state.prompt->tokens.size(), state.cached_tokens, state.n_pieces}.to_json();
  return whole;
}

json Run::piece_choice(size_t index, std::string piece, const std::vector<TokenLogprob>& logprobs) {
  Choice& choice = choices_[index];
  const bool wants = parts_.call.n_logprobs >= 0 && !logprobs.empty();
  json shown = {{"logprobs", nullptr}};
  if (parts_.call.is_chat) {
    shown["delta"] = {{"content", std::move(piece)}};
    // No chunk before the first token: its time is what clients measure.
    if (choice.n_pieces == 1) shown["delta"]["role"] = "assistant";
    if (wants) shown["logprobs"] = chat_logprobs(text(), logprobs);
    return shown;
  }
  shown["text"] = std::move(piece);
  if (wants) {
    for (const TokenLogprob& token : logprobs) choice.offsets.add(token);
    shown["logprobs"] = choice.offsets.take();
  }
  return shown;
}

void Run::add_echo_logprobs(const Choice& choice, CompletionLogprobs* logprobs) const {
  logprobs->add(choice.prompt->tokens.front());
  for (const TokenLogprob& token : choice.prompt_logprobs) logprobs->add(token);
}

void Run::emit_echo(size_t index) {
  Choice& choice = choices_[index];
  json shown = {{"text", choice.prompt->text}, {"logprobs", nullptr}};
  if (parts_.call.n_logprobs >= 0) {
    add_echo_logprobs(choice, &choice.offsets);
    shown["logprobs"] = choice.offsets.take();
  }
  emit(chunk(index, std::move(shown), false));
}

void Run::on_progress(size_t index, uint64_t done, uint64_t n, uint64_t cached) {
  choices_[index].cached_tokens = cached;
  if (stream_ == nullptr || !parts_.call.return_progress) return;
  json whole = chunk_head_;
  const std::chrono::duration<double, std::milli> time = Clock::now() - start_;
  whole["prompt_progress"] = {
      {"total", n}, {"cache", cached}, {"processed", done}, {"time_ms", time.count()}};
  if (choices_.size() > 1) whole["prompt_progress"]["index"] = index;
  emit(whole);
}

void Run::on_prompt_logprobs(size_t index, std::vector<TokenLogprob> logprobs) {
  choices_[index].prompt_logprobs = std::move(logprobs);
}

void Run::on_piece(size_t index, Piece piece) {
  Choice& choice = choices_[index];
  if (stream_ != nullptr) {
    if (parts_.call.echo && choice.n_pieces == 0) emit_echo(index);
    ++choice.n_pieces;
    emit(chunk(index, piece_choice(index, std::move(piece.text), piece.logprobs), false));
    return;
  }
  ++choice.n_pieces;
  choice.text += piece.text;
  std::move(piece.logprobs.begin(), piece.logprobs.end(), std::back_inserter(choice.logprobs));
}

void Run::on_end(size_t index, const GenerateResult& result) {
  Choice& choice = choices_[index];
  choice.result = result;
  choice.cached_tokens = result.cached_tokens;
  const bool is_whole =
      result.reason == FinishReason::kStop || result.reason == FinishReason::kLength;
  if (!is_whole) {
    fail(result.status.ok() ? absl::InternalError("the answer ended without a reason")
                            : with_prompt_param(result.status, param_of(parts_.call)));
  } else if (stream_ != nullptr) {
    if (parts_.call.echo && choice.n_pieces == 0) emit_echo(index);
    json last = {{"logprobs", nullptr}};
    if (parts_.call.is_chat) {
      last["delta"] = json::object();
    } else {
      last["text"] = "";
    }
    emit(chunk(index, std::move(last), true));
  }
  if (n_open_.fetch_sub(1) == 1) ended();
}

void Run::ended() {
  absl::Status failure;
  {
    const MutexLock lock(&mutex_);
    failure = failure_;
  }
  if (stream_ != nullptr) {
    if (!failure.ok()) return stream_->fail(error_response(failure));
    return finish_stream();
  }
  if (!failure.ok()) return responder_->send(error_response(failure));
  const std::shared_ptr<Worker> worker = parts_.worker.lock();
  if (parts_.call.n_logprobs < 0 || worker == nullptr) return finish_whole();
  worker->post([self = shared_from_this()] { self->finish_whole(); });
}

void Run::finish_stream() {
  open_stream();  // the last choice may end before submit() comes back
  if (parts_.call.include_usage || parts_.call.continuous_usage || parts_.call.return_timings) {
    json last = chunk_head_;
    last["usage"] = usage().to_json();
    if (parts_.call.return_timings) last["timings"] = timings_of(choices_.front().result);
    emit(last);
  }
  stream_->finish();
}

Usage Run::usage() const {
  Usage sum;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const GenerateResult& result = choices_[i].result;
    sum.output_tokens += result.output_tokens;
    if (i % parts_.call.best_of != 0) continue;  // a prompt counts once
    sum.prompt_tokens += result.prompt_tokens;
    sum.cached_tokens += result.cached_tokens;
  }
  return sum;
}

// The n likeliest of each prompt's.
std::vector<const Choice*> Run::answered() const {
  std::vector<const Choice*> all;
  const size_t best_of = parts_.call.best_of, n = parts_.call.n;
  for (size_t first = 0; first < choices_.size(); first += best_of) {
    std::vector<const Choice*> of_prompt;
    for (size_t i = 0; i < best_of; ++i) of_prompt.push_back(&choices_[first + i]);
    if (best_of > n) {
      std::stable_sort(of_prompt.begin(), of_prompt.end(), [](const auto* a, const auto* b) {
        return a->mean_logprob() > b->mean_logprob();
      });
    }
    all.insert(all.end(), of_prompt.begin(), of_prompt.begin() + static_cast<std::ptrdiff_t>(n));
  }
  return all;
}

json Run::whole_choice(const Choice& choice) const {
  json shown = {{"finish_reason", reason_name(choice.result)}, {"logprobs", nullptr}};
  const bool wants = parts_.call.n_logprobs >= 0;
  if (parts_.call.is_chat) {
    shown["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    if (wants) shown["logprobs"] = chat_logprobs(text(), choice.logprobs);
    return shown;
  }
  shown["text"] = parts_.call.echo ? choice.prompt->text + choice.text : choice.text;
  if (wants) {
    CompletionLogprobs logprobs(&text());
    if (parts_.call.echo) add_echo_logprobs(choice, &logprobs);
    for (const TokenLogprob& token : choice.logprobs) logprobs.add(token);
    shown["logprobs"] = logprobs.take();
  }
  return shown;
}

void Run::finish_whole() {
  json whole = head_.to_json(false);
  for (const Choice* choice : answered()) {
    json shown = whole_choice(*choice);
    shown["index"] = whole["choices"].size();
    whole["choices"].push_back(std::move(shown));
  }
  whole["usage"] = usage().to_json();
  if (parts_.call.return_timings) whole["timings"] = timings_of(choices_.front().result);
  Response response;
  response.headers = placement_headers(parts_.arrival, parts_.placement);
  response.body = dump(whole);
  responder_->send(std::move(response));
}

}  // namespace

Headers placement_headers(const Arrival& arrival, const Placement& placement) {
  if (arrival.who.scope != Scope::kAdmin) return {};
  return {{"X-Varve-Class", placement.class_name},
          {"X-Varve-Arm", placement.arm},
          {"X-Varve-Stack", placement.stack}};
}

void run_generation(RunParts parts, std::shared_ptr<Responder> responder) {
  std::make_shared<Run>(std::move(parts), std::move(responder))->submit();
}

}  // namespace varve::http
