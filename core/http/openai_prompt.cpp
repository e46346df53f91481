#include "core/http/openai_prompt.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/sha256.h"
#include "core/http/request_json.h"

namespace varve::http {
namespace {

constexpr size_t kConversationTokens = 256;
constexpr uint64_t kCompletionTokens = 16;  // OpenAI's default

absl::StatusOr<std::vector<int32_t>> completion_tokens(const PromptInput& input, const Lane& lane,
                                                       const Context* context) {
  std::vector<int32_t> tokens;
  if (context != nullptr) tokens = context->prefix;
  if (const auto* given = std::get_if<std::vector<int32_t>>(&input)) {
    const auto vocabulary = static_cast<int64_t>(lane.model().vocab_size);
    for (const int32_t token : *given) {
      if (token >= vocabulary)
        return invalid("prompt",
                       absl::StrCat("found token ", token, ", expected less than the vocabulary's ",
                                    vocabulary));
    }
    tokens.insert(tokens.end(), given->begin(), given->end());
    return tokens;
  }
  const absl::StatusOr<std::vector<int32_t>> made =
      lane.text().tokenize(std::get<std::string>(input), tokens.empty(), true);
  if (!made.ok()) return with_param(made.status(), "prompt");
  tokens.insert(tokens.end(), made->begin(), made->end());
  return tokens;
}

absl::StatusOr<std::vector<int32_t>> prompt_tokens(const GenerateCall& call, size_t i,
                                                   const Lane& lane, const Context* context) {
  if (!call.is_chat) return completion_tokens(call.prompts[i], lane, context);
  absl::StatusOr<std::vector<int32_t>> tokens = chat_tokens(
      lane.text(), context == nullptr ? call.messages : joined(*context, call.messages));
  if (!tokens.ok()) return with_param(tokens.status(), "messages");
  return tokens;
}

// Whether the context's tokens mean to `lane` what they mean to its own.
bool can_read(const Context& context, const Lane& lane) {
  if (context.placement.lane.get() == &lane) return true;
  if (context.placement.lane->model().vocab_size != lane.model().vocab_size) return false;
  const auto meant = context.placement.lane->text().detokenize(context.prefix, true);
  const auto read = lane.text().detokenize(context.prefix, true);
  return meant.ok() && read.ok() && *meant == *read;
}

absl::Status check_context(const GenerateCall& call, const Placement& placement,
                           const Context* context) {
  if (context == nullptr) return absl::OkStatus();
  if (!can_read(*context, *placement.lane)) {
    return with_param(
        absl::FailedPreconditionError(
            absl::StrCat("context: found one of another model than that of stack ", placement.stack,
                         ", which serves this request; expected one of the same: "
                         "register the text again with this request's service_tier")),
        "context", "context_model");
  }
  if (context->is_template == call.is_chat) return absl::OkStatus();
  return invalid("context", call.is_chat ? "was registered with \"template\": false, which is for "
                                           "completions; expected one registered for chats"
                                         : "was registered for chats; expected one registered with "
                                           "\"template\": false");
}

absl::Status check_biases(const GenerateCall& call, const Lane& lane) {
  for (const auto& [token, bias] : call.sampling.logit_bias) {
    if (static_cast<uint64_t>(token) < lane.model().vocab_size) continue;
    return invalid("logit_bias",
                   absl::StrCat("found token ", token, ", expected less than the vocabulary's ",
                                lane.model().vocab_size));
  }
  return absl::OkStatus();
}

uint64_t no_limit_when_0(uint64_t limit) {
  return limit == 0 ? std::numeric_limits<uint64_t>::max() : limit;
}

// Longest context, prompt and answer together.
uint64_t context_tokens(const Placement& placement) {
  return no_limit_when_0(placement.lane->model().max_tokens);
}

}  // namespace

absl::Status check_prompt_length(const Placement& placement, uint64_t n_tokens, bool wants_answer,
                                 std::string_view param) {
  const uint64_t room = context_tokens(placement) - (wants_answer ? 1 : 0);
  const uint64_t limit = std::min(room, no_limit_when_0(placement.max_prompt_tokens));
  if (n_tokens <= limit) return absl::OkStatus();
  return invalid(param,
                 absl::StrCat("found ", n_tokens, " tokens, expected at most ", limit,
                              " (the model's context is ", context_tokens(placement),
                              " tokens, answer included). Nothing was cut: send less text"),
                 "context_length_exceeded");
}

absl::Status with_prompt_param(absl::Status status, std::string_view param) {
  if (!absl::IsOutOfRange(status)) return status;
  return with_param(std::move(status), param, "context_length_exceeded");
}

absl::StatusOr<std::vector<Prompt>> make_prompts(const GenerateCall& call,
                                                 const Placement& placement,
                                                 const Context* context) {
  const Lane& lane = *placement.lane;
  absl::Status status = check_context(call, placement, context);
  if (status.ok()) status = check_biases(call, lane);
  std::vector<Prompt> prompts(call.is_chat ? 1 : call.prompts.size());
  for (size_t i = 0; status.ok() && i < prompts.size(); ++i) {
    absl::StatusOr<std::vector<int32_t>> tokens = prompt_tokens(call, i, lane, context);
    if (!tokens.ok()) return tokens.status();
    if (tokens->empty()) return invalid(param_of(call), "found no tokens, expected at least one");
    status = check_prompt_length(placement, tokens->size(), call.max_tokens.value_or(1) > 0,
                                 param_of(call));
    prompts[i].tokens = *std::move(tokens);
    if (!status.ok() || !call.echo) continue;
    absl::StatusOr<std::string> text = lane.text().detokenize(prompts[i].tokens, true);
    if (!text.ok()) return text.status();
    const bool is_given =
        context == nullptr && std::holds_alternative<std::string>(call.prompts[i]);
    prompts[i].text = is_given ? std::get<std::string>(call.prompts[i]) : *std::move(text);
  }
  if (!status.ok()) return status;
  if (call.max_tokens.has_value() && call.min_tokens > *call.max_tokens)
    return invalid("min_tokens",
                   absl::StrCat("found ", call.min_tokens,
                                ", expected at most max_tokens = ", *call.max_tokens));
  return prompts;
}

uint64_t answer_limit(const GenerateCall& call, const Placement& placement,
                      uint64_t prompt_tokens) {
  const uint64_t allowed = no_limit_when_0(placement.max_answer_tokens);
  const uint64_t room = context_tokens(placement) - prompt_tokens;
  return std::min(
      {call.max_tokens.value_or(call.is_chat ? allowed : kCompletionTokens), allowed, room});
}

std::string conversation_of(const GenerateCall& call) {
  if (!call.conversation.empty()) return call.conversation;
  if (!call.context.empty()) return call.context;
  std::string start;
  for (const ChatMessage& message : call.messages) {
    absl::StrAppend(&start, message.role, ":", message.content.size(), ":", message.content);
    if (message.role == "user") break;
  }
  if (!call.prompts.empty()) {
    if (const auto* text = std::get_if<std::string>(&call.prompts.front())) {
      start = text->substr(0, 4 * kConversationTokens);
    } else {
      const auto& tokens = std::get<std::vector<int32_t>>(call.prompts.front());
      const size_t n = std::min(tokens.size(), kConversationTokens);
      start.assign(reinterpret_cast<const char*>(tokens.data()), n * sizeof(int32_t));
    }
  }
  return sha256_hex(start);
}

}  // namespace varve::http
