#include "core/http/openai_answer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/text.h"
#include "core/http/request_json.h"
#include "core/metrics/timings_text.h"

namespace varve::http {
namespace {

using nlohmann::json;

// OpenAI's for "as good as impossible"; JSON has no infinity.
constexpr float kLogprobMin = -9999;

std::string token_bytes(const Text& text, int32_t token) {
  absl::StatusOr<std::string> bytes = text.detokenize({&token, 1}, true);
  return bytes.ok() ? *std::move(bytes) : std::string();
}

std::string name_of(const std::string& bytes) {
  if (utf8_prefix(bytes) == bytes.size()) return bytes;
  std::string name = "bytes:";
  for (const char c : bytes)
    absl::StrAppend(&name, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
  return name;
}

float bounded(float logprob) { return logprob > kLogprobMin ? logprob : kLogprobMin; }

json chat_entry(const Text& text, int32_t token, float logprob) {
  const std::string bytes = token_bytes(text, token);
  json numbers = json::array();
  for (const char c : bytes) numbers.push_back(static_cast<unsigned char>(c));
  return {{"token", name_of(bytes)}, {"logprob", bounded(logprob)}, {"bytes", std::move(numbers)}};
}

json ms_between(absl::Time start, absl::Time end) {
  if (start == absl::InfinitePast() || end == absl::InfinitePast()) return nullptr;
  return absl::ToDoubleMilliseconds(end - start);
}

}  // namespace

json AnswerHead::to_json(bool is_chunk) const {
  const char* object = !is_chat   ? "text_completion"
                       : is_chunk ? "chat.completion.chunk"
                                  : "chat.completion";
  return {{"id", id},
          {"object", object},
          {"created", created_s},
          {"model", model},
          {"system_fingerprint", fingerprint},
          {"service_tier", service_tier},
          {"choices", json::array()}};
}

json Usage::to_json() const {
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", output_tokens},
          {"total_tokens", prompt_tokens + output_tokens},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}}};
}

std::string token_name(const Text& text, int32_t token) {
  return name_of(token_bytes(text, token));
}

json chat_logprobs(const Text& text, const std::vector<TokenLogprob>& tokens) {
  json content = json::array();
  for (const TokenLogprob& token : tokens) {
    json entry = chat_entry(text, token.token, token.logprob);
    json top = json::array();
    for (const auto& [other, logprob] : token.top) top.push_back(chat_entry(text, other, logprob));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

void CompletionLogprobs::add_name(int32_t token, const std::string& name) {
  offsets_.push_back(offset_);
  tokens_.push_back(name);
  for (const char c : token_bytes(*text_, token)) offset_ += (c & 0xC0) != 0x80 ? 1 : 0;
}

void CompletionLogprobs::add(int32_t token) {
  add_name(token, token_name(*text_, token));
  logprobs_.push_back(nullptr);
  top_.push_back(nullptr);
}

void CompletionLogprobs::add(const TokenLogprob& token) {
  const std::string name = token_name(*text_, token.token);
  add_name(token.token, name);
  logprobs_.push_back(bounded(token.logprob));
  json top = json::object();
  for (const auto& [other, logprob] : token.top)
    top.emplace(token_name(*text_, other), bounded(logprob));
  top[name] = bounded(token.logprob);
  top_.push_back(std::move(top));
}

json CompletionLogprobs::take() {
  json taken = {{"tokens", std::exchange(tokens_, json::array())},
                {"token_logprobs", std::exchange(logprobs_, json::array())},
                {"top_logprobs", std::exchange(top_, json::array())},
                {"text_offset", std::exchange(offsets_, json::array())}};
  return taken;
}

json timings_of(const GenerateResult& result) {
  json timings = result.has_timings ? timings_json(result.timings) : json::object();
  timings["queue_ms"] = ms_between(result.arrived, result.started);
  timings["prefill_ms"] = ms_between(result.started, result.first_token);
  timings["ttft_ms"] = ms_between(result.arrived, result.first_token);
  timings["total_ms"] = ms_between(result.arrived, result.ended);
  timings["prompt_tokens"] = result.prompt_tokens;
  timings["cached_tokens"] = result.cached_tokens;
  timings["output_tokens"] = result.output_tokens;
  timings["demotions"] = result.demotions;
  return timings;
}

}  // namespace varve::http
