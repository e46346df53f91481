// What a chat or a completion asks for, checked against openapi.json, before any text is made into
// tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "core/engine/sampler.h"
#include "core/engine/text.h"
#include "core/http/request_json.h"

namespace varve::http {

struct ParseOptions {
  uint32_t choices_max = 8;
  std::string unknown_fields = "ignore";  // ignore | warn | reject
};

using PromptInput = std::variant<std::string, std::vector<int32_t>>;

struct GenerateCall {
  bool is_chat = false;
  std::vector<ChatMessage> messages;  // chats: roles system, user, assistant
  std::vector<PromptInput> prompts;   // completions: at least one, none empty
  bool stream = false, include_usage = false, continuous_usage = false;
  bool echo = false, return_timings = false, return_progress = false;
  uint32_t n = 1, best_of = 1;  // choices answered and generated per prompt
  int n_logprobs = -1;
  SamplerOptions sampling;
  bool has_seed = false;
  std::optional<uint64_t> max_tokens;
  uint64_t min_tokens = 0;
  bool ignore_end = false, keeps_prefix = true;
  std::vector<std::string> stop;
  std::string service_tier, conversation, context;
  std::string grammar_param;          // the field that sampling.grammar came from
  std::vector<std::string> warnings;  // what was accepted and has no effect
};

// The field that the prompt came from.
inline const char* param_of(const GenerateCall& call) {
  return call.is_chat ? "messages" : "prompt";
}

// Pure. Errors name the field: with_param().
absl::StatusOr<GenerateCall> parse_chat(std::string_view body, const ParseOptions& options);
absl::StatusOr<GenerateCall> parse_completion(std::string_view body, const ParseOptions& options);

// The body as an object that fits components.schemas.<schema> of openapi.json.
absl::StatusOr<Json> checked_body(std::string_view body, const char* schema,
                                  const ParseOptions& options, std::vector<std::string>* warnings);
// A checked `messages`. Developer counts as system, tool and function as user.
std::vector<ChatMessage> take_messages(Json& messages);
// The fields of components.schemas.Generation into `call`.
absl::Status take_generation(Json& body, const ParseOptions& options, GenerateCall* call);

}  // namespace varve::http
