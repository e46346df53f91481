// Stands between a lane and a request's own sink, to see when it starts to run and how it ends.
// Internal to core/route.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/engine/request.h"

namespace varve {

class WatchingSink final : public GenerateSink {
 public:
  struct Watch {
    std::function<void()> on_started;   // once, when the stack has computed something for it
    std::function<void()> on_answered;  // once, when it has a first token
    // Before the sink's own on_end. `answer` is empty unless keeps_answer.
    std::function<void(const GenerateResult&, const std::vector<int32_t>& answer)> on_ended;
    bool keeps_answer = false;
  };

  WatchingSink(std::shared_ptr<GenerateSink> sink, Watch watch)
      : sink_(std::move(sink)), watch_(std::move(watch)) {}

  void on_prompt_progress(uint64_t done_tokens, uint64_t n_tokens,
                          uint64_t cached_tokens) override {
    start();
    sink_->on_prompt_progress(done_tokens, n_tokens, cached_tokens);
  }
  void on_prompt_logprobs(std::vector<TokenLogprob> logprobs) override {
    start();
    sink_->on_prompt_logprobs(std::move(logprobs));
  }
  void on_piece(Piece piece) override {
    start();
    if (!std::exchange(answered_, true)) watch_.on_answered();
    if (watch_.keeps_answer) answer_.push_back(piece.token);
    sink_->on_piece(std::move(piece));
  }
  void on_end(const GenerateResult& result) override {
    if (result.started != absl::InfinitePast()) start();
    watch_.on_ended(result, answer_);
    sink_->on_end(result);
  }

 private:
  void start() {
    if (!std::exchange(started_, true)) watch_.on_started();
  }

  const std::shared_ptr<GenerateSink> sink_;
  const Watch watch_;
  bool started_ = false, answered_ = false;
  std::vector<int32_t> answer_;
};

}  // namespace varve
