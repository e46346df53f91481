// From a parsed request to tokens, within the limits of its class and model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/http/contexts.h"
#include "core/http/openai_request.h"
#include "core/route/dispatcher.h"

namespace varve::http {

struct Prompt {
  std::vector<int32_t> tokens;  // at least one, each inside the vocabulary
  std::string text;             // with echo: what the tokens say
};

// Errors name the field. Too long is 400 context_length_exceeded with both numbers; nothing is ever
// cut. `context` may be null.
absl::StatusOr<std::vector<Prompt>> make_prompts(const GenerateCall& call,
                                                 const Placement& placement,
                                                 const Context* context);

// Most tokens that an answer may have: what was asked for, clipped to class and model.
uint64_t answer_limit(const GenerateCall& call, const Placement& placement, uint64_t prompt_tokens);

// Longest prompt that still leaves room for an answer, or exactly fits when none is wanted.
absl::Status check_prompt_length(const Placement& placement, uint64_t n_tokens, bool wants_answer,
                                 std::string_view param);

// What a lane says of a prompt that can never fit (kOutOfRange), for the client: the field and
// context_length_exceeded. Any other status as it is.
absl::Status with_prompt_param(absl::Status status, std::string_view param);

// The client's id of the conversation, or one derived from how it begins.
std::string conversation_of(const GenerateCall& call);

}  // namespace varve::http
