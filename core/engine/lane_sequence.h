// One sequence while it is in a lane. Belongs to the lane's thread once it has been taken from the
// queue.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/batch/queue.h"
#include "core/engine/generation.h"
#include "core/engine/lane_context.h"
#include "core/engine/prefix_keys.h"
#include "core/engine/request.h"

namespace varve {

struct LaneSequence {
  LaneSequence(GenerateRequest r, std::shared_ptr<GenerateSink> s, CancelFlag c, PrefixKeys k)
      : request(std::move(r)), sink(std::move(s)), cancel(std::move(c)), keys(std::move(k)) {}

  uint64_t id() const { return place.id; }
  // Above all shadow requests, whatever their class.
  uint32_t priority() const { return place.priority; }
  bool is_cancelled() const { return cancel != nullptr && cancel->load() != 0; }

  uint64_t n_left() const { return tokens.size() - n_read; }
  bool is_prompt_read() const { return n_read >= request.prompt.size(); }
  // Waits for its next token only: not for a prompt, nor for what it gave up when it was preempted.
  bool is_answering() const { return context && n_left() == 1 && is_prompt_read(); }
  bool wants_prompt_logprobs() const { return request.n_prompt_logprobs >= 0; }
  // May begin with what others of its tenant have read.
  bool shares() const {
    return request.keeps_prefix && (!wants_prompt_logprobs() || is_prompt_told);
  }

  GenerateRequest request;
  std::shared_ptr<GenerateSink> sink;
  CancelFlag cancel;
  PrefixKeys keys;  // of `tokens`
  WaitingRequest place;
  std::unique_ptr<Generation> generation;  // null when nothing is to be answered
  GenerateResult result;
  uint64_t tokens_max = 0;  // prompt and answer

  LaneContext context;
  std::vector<int32_t> tokens;  // the prompt and what was drawn
  uint64_t n_read = 0;          // of them, in the context
  mri_kv_usage share{};         // of the last step's usage, by tokens
  uint32_t room_tries = 0;      // for lack of memory, since the last success
  uint32_t preemptions = 0;
  uint64_t n_progress_told = 0;
  bool is_prompt_told = false;  // its logprobs, its end, its kept prefix
  std::vector<TokenLogprob> prompt_logprobs;
  uint64_t arrived_us = 0, started_us = 0, last_token_us = 0;
  bool has_started = false, has_token = false;
};

}  // namespace varve
