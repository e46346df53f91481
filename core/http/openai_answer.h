// Answers in the shapes that OpenAI's clients read.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/engine/request.h"
#include "core/engine/text.h"

namespace varve::http {

// What an answer and each chunk of it begin with.
struct AnswerHead {
  bool is_chat = false;
  std::string id, model, fingerprint, service_tier;
  int64_t created_s = 0;  // since 1970

  // {"id", "object", "created", "model", "system_fingerprint", "service_tier", "choices": []}
  nlohmann::json to_json(bool is_chunk) const;
};

struct Usage {
  uint64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  nlohmann::json to_json() const;
};

// A token as a name: its text, special marks included; where that is not UTF-8 by itself,
// "bytes:\xe2\x80".
std::string token_name(const Text& text, int32_t token);

// {"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null}
nlohmann::json chat_logprobs(const Text& text, const std::vector<TokenLogprob>& tokens);

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}: offsets in characters of the text
// that began with the prompt when that is echoed. The token itself is always among the top ones.
class CompletionLogprobs {
 public:
  explicit CompletionLogprobs(const Text* text) : text_(text) {}
  // A token with no logprob: the first of a prompt.
  void add(int32_t token);
  void add(const TokenLogprob& token);
  // What was added since the last take().
  nlohmann::json take();

 private:
  void add_name(int32_t token, const std::string& name);

  const Text* text_;
  uint64_t offset_ = 0;
  nlohmann::json tokens_ = nlohmann::json::array(), logprobs_ = nlohmann::json::array(),
                 top_ = nlohmann::json::array(), offsets_ = nlohmann::json::array();
};

// {"queue_ms", "prefill_ms", "ttft_ms", "total_ms", "prompt_tokens", …} and, when they were taken,
// those of timings_json(). Times that were not reached are null.
nlohmann::json timings_of(const GenerateResult& result);

}  // namespace varve::http
