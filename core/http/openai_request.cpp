#include "core/http/openai_request.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/text.h"
#include "core/engine/json_grammar.h"
#include "core/http/openapi.h"
#include "core/http/request_json.h"

namespace varve::http {
namespace {

constexpr size_t kNameBytesMax = 64;

bool flag(const Json& body, const char* name) { return body.value(name, false); }

void take_sampling(const Json& body, GenerateCall* call) {
  SamplerOptions& sampling = call->sampling;
  sampling.temperature = body.value("temperature", 1.0);
  sampling.top_p = body.value("top_p", 1.0);
  sampling.min_p = body.value("min_p", 0.0);
  sampling.top_k = static_cast<uint32_t>(std::max<int64_t>(0, body.value("top_k", int64_t{0})));
  sampling.presence_penalty = body.value("presence_penalty", 0.0);
  sampling.frequency_penalty = body.value("frequency_penalty", 0.0);
  sampling.repetition_penalty = body.value("repetition_penalty", 1.0);
  call->has_seed = body.contains("seed");
  sampling.seed = static_cast<uint64_t>(body.value("seed", int64_t{0}));
}

void take_logit_bias(const Json& body, GenerateCall* call) {
  const auto biases = body.find("logit_bias");
  if (biases == body.end()) return;
  for (const auto& [name, bias] : biases->items()) {
    int32_t token = 0;
    if (absl::SimpleAtoi(name, &token) && token >= 0) {
      call->sampling.logit_bias.emplace_back(token, bias.get<float>());
    } else {
      call->warnings.push_back(absl::StrCat("logit_bias: \"", clean_text(name, kNameBytesMax),
                                            "\" is no token number and was ignored"));
    }
  }
}

// "" stops nothing.
void take_stop(Json& body, GenerateCall* call) {
  const auto stop = body.find("stop");
  if (stop == body.end()) return;
  if (stop->is_string()) *stop = Json::array({std::move(*stop)});
  for (Json& text : *stop) {
    if (!text.get_ref<const std::string&>().empty())
      call->stop.push_back(std::move(text.get_ref<std::string&>()));
  }
}

// The first schema that the body asks its answer to follow, with its name; null: none.
absl::StatusOr<std::pair<Json, const char*>> answer_schema(const Json& body) {
  if (const auto format = body.find("response_format"); format != body.end()) {
    const std::string type = format->at("type");
    if (type == "json_schema") {
      if (!format->contains("json_schema"))
        return invalid("response_format.json_schema", "found none, expected an object with schema");
      return std::pair(format->at("json_schema").at("schema"),
                       "response_format.json_schema.schema");
    }
    if (type == "json_object" && format->contains("schema"))
      return std::pair(format->at("schema"), "response_format.schema");
  }
  if (body.contains("json_schema")) return std::pair(body.at("json_schema"), "json_schema");
  const auto guided = body.find("guided_json");
  if (guided == body.end()) return std::pair(Json(), "");
  if (guided->is_object()) return std::pair(*guided, "guided_json");
  absl::StatusOr<Json> parsed = parse_json(guided->get_ref<const std::string&>(), "guided_json");
  if (!parsed.ok()) return parsed.status();
  return std::pair(*std::move(parsed), "guided_json");
}

// What other servers know, and what would give other answers if it were ignored.
absl::Status check_not_served(const Json& body) {
  static constexpr std::pair<const char*, const char*> kRows[] = {
      {"guided_regex", "guided_grammar, with a GBNF grammar"},
      {"structured_outputs", "response_format, guided_json, guided_choice or guided_grammar"},
      {"stop_token_ids", "stop, with texts"},
      {"prompt_logprobs", "echo and logprobs of /v1/completions"},
  };
  for (const auto& [name, instead] : kRows) {
    const auto found = body.find(name);
    if (found == body.end() || found->empty() || *found == 0) continue;
    return invalid(name, absl::StrCat("is not served; expected ", instead));
  }
  return absl::OkStatus();
}

absl::Status take_grammar(const Json& body, GenerateCall* call) {
  std::string& grammar = call->sampling.grammar;
  for (const char* name : {"grammar", "guided_grammar"}) {
    if (!body.contains(name)) continue;
    grammar = body.at(name);
    call->grammar_param = name;
  }
  if (body.contains("guided_choice")) {
    if (!grammar.empty())
      return invalid("guided_choice", "found beside a grammar; expected one of them");
    grammar = choice_grammar(body.at("guided_choice"));
    call->grammar_param = "guided_choice";
  }
  const absl::StatusOr<std::pair<Json, const char*>> schema = answer_schema(body);
  if (!schema.ok()) return schema.status();
  const bool wants_object =
      body.contains("response_format") && body.at("response_format").at("type") == "json_object";
  const bool wants_json = wants_object || !schema->first.is_null();
  if (!grammar.empty() && wants_json)
    return invalid(call->grammar_param, "found beside a JSON format; expected one of them");
  if (!schema->first.is_null()) {
    absl::StatusOr<std::string> converted = json_schema_grammar(schema->first);
    if (!converted.ok()) return with_param(converted.status(), schema->second);
    grammar = *std::move(converted);
    call->grammar_param = schema->second;
  } else if (wants_object) {
    grammar = json_object_grammar();
  }
  return absl::OkStatus();
}

std::string content_text(Json& message) {
  const auto content = message.find("content");
  if (content == message.end()) return "";
  if (content->is_string()) return std::move(content->get_ref<std::string&>());
  std::string text;
  for (const Json& part : *content) text += part.at("text").get_ref<const std::string&>();
  return text;
}

std::vector<PromptInput> take_prompts(Json& prompt) {
  if (prompt.is_string()) return {std::move(prompt.get_ref<std::string&>())};
  if (prompt.front().is_number()) return {prompt.get<std::vector<int32_t>>()};
  std::vector<PromptInput> prompts;
  for (Json& entry : prompt) {
    if (entry.is_string()) {
      prompts.emplace_back(std::move(entry.get_ref<std::string&>()));
    } else {
      prompts.emplace_back(entry.get<std::vector<int32_t>>());
    }
  }
  return prompts;
}

absl::Status check_choices(const GenerateCall& call, size_t n_prompts,
                           const ParseOptions& options) {
  const uint64_t n = uint64_t{std::max(call.n, call.best_of)} * n_prompts;
  if (n <= options.choices_max) return absl::OkStatus();
  return invalid(n_prompts > 1                  ? "prompt"
                 : call.n > options.choices_max ? "n"
                                                : "best_of",
                 absl::StrCat("found ", n, " answers (prompts times choices), expected at most ",
                              options.choices_max, " (server.choices_max)"));
}

}  // namespace

absl::StatusOr<Json> checked_body(std::string_view body, const char* schema,
                                  const ParseOptions& options, std::vector<std::string>* warnings) {
  absl::StatusOr<Json> parsed = parse_body(body);
  if (!parsed.ok()) return parsed;
  std::vector<std::string> unknown;
  const absl::Status status = request_schema(schema).check(*parsed, &unknown);
  if (!status.ok()) return status;
  if (options.unknown_fields == "ignore" || unknown.empty()) return parsed;
  if (options.unknown_fields == "reject") {
    return invalid(unknown.front(),
                   "found a field that is not in /openapi.json, expected none "
                   "(server.unknown_fields is reject)");
  }
  for (const std::string& name : unknown)
    warnings->push_back(absl::StrCat(name, " is not in /openapi.json and was ignored"));
  return parsed;
}

std::vector<ChatMessage> take_messages(Json& messages) {
  std::vector<ChatMessage> taken;
  for (Json& message : messages) {
    std::string role = message.at("role");
    if (role == "developer") role = "system";
    if (role == "tool" || role == "function") role = "user";
    taken.push_back({std::move(role), content_text(message)});
  }
  return taken;
}

absl::Status take_generation(Json& body, const ParseOptions& options, GenerateCall* call) {
  if (const absl::Status status = check_not_served(body); !status.ok()) return status;
  take_sampling(body, call);
  take_logit_bias(body, call);
  take_stop(body, call);
  call->stream = flag(body, "stream");
  if (const auto found = body.find("stream_options"); found != body.end()) {
    call->include_usage = flag(*found, "include_usage");
    call->continuous_usage = flag(*found, "continuous_usage_stats");
  }
  call->return_timings = flag(body, "return_timings");
  call->return_progress = flag(body, "return_progress");
  call->ignore_end = flag(body, "ignore_eos");
  call->keeps_prefix = body.value("cache_prompt", true);
  call->n = call->best_of = body.value("n", 1u);
  if (body.contains("max_tokens")) call->max_tokens = body.at("max_tokens").get<uint64_t>();
  call->min_tokens = body.value("min_tokens", uint64_t{0});
  call->service_tier = body.value("service_tier", "");
  call->conversation = body.value("conversation", "");
  call->context = body.value("context", "");
  const absl::Status status = take_grammar(body, call);
  return status.ok() ? check_choices(*call, 1, options) : status;
}

absl::StatusOr<GenerateCall> parse_chat(std::string_view body, const ParseOptions& options) {
  GenerateCall call;
  call.is_chat = true;
  absl::StatusOr<Json> parsed = checked_body(body, "ChatRequest", options, &call.warnings);
  if (!parsed.ok()) return parsed.status();
  if (const auto max = parsed->find("max_completion_tokens"); max != parsed->end())
    (*parsed)["max_tokens"] = *max;
  const absl::Status status = take_generation(*parsed, options, &call);
  if (!status.ok()) return status;
  if (call.max_tokens == 0)
    return invalid("max_tokens", "found 0, expected 1 or more: a chat is answered");
  const bool wants_logprobs = flag(*parsed, "logprobs");
  const int n_top = parsed->value("top_logprobs", 0);
  if (n_top > 0 && !wants_logprobs)
    return invalid("top_logprobs", "found without logprobs, expected \"logprobs\": true beside it");
  if (wants_logprobs) call.n_logprobs = n_top;
  if (const auto choice = parsed->find("tool_choice"); choice != parsed->end()) {
    if (choice->is_object() || *choice == "required")
      return invalid("tool_choice", "the served model calls no tools; expected none or auto");
  }
  for (const char* name : {"tools", "functions"}) {
    if (parsed->contains(name))
      call.warnings.push_back(absl::StrCat(name, " has no effect: the served model calls none"));
  }
  call.messages = take_messages(parsed->at("messages"));
  return call;
}

absl::StatusOr<GenerateCall> parse_completion(std::string_view body, const ParseOptions& options) {
  GenerateCall call;
  absl::StatusOr<Json> parsed = checked_body(body, "CompletionRequest", options, &call.warnings);
  if (!parsed.ok()) return parsed.status();
  Json& prompt = parsed->at("prompt");
  const bool is_list = prompt.is_array() && !prompt.front().is_number();
  const absl::Status status = take_generation(*parsed, options, &call);
  if (!status.ok()) return status;
  call.best_of = std::max(call.n, parsed->value("best_of", call.n));
  if (parsed->contains("best_of") && parsed->at("best_of") < call.n)
    return invalid("best_of", absl::StrCat("found less than n = ", call.n, ", expected n or more"));
  const absl::Status choices = check_choices(call, is_list ? prompt.size() : 1, options);
  if (!choices.ok()) return choices;
  call.echo = flag(*parsed, "echo");
  if (call.max_tokens == 0 && !call.echo)
    return invalid("max_tokens", "found 0, expected 1 or more, or \"echo\": true beside it");
  call.n_logprobs = parsed->value("logprobs", -1);
  if (call.stream && call.best_of > call.n)
    return invalid("best_of", "found more than n with stream, expected n: what is sent is chosen");
  if (parsed->contains("suffix"))
    return invalid("suffix", "the served model fills no gaps; expected none");
  call.prompts = take_prompts(prompt);
  return call;
}

}  // namespace varve::http
