// Routes /tokenize, /detokenize, /tokenizer_info, in the shapes of llama.cpp and vLLM.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/http/openai_answer.h"
#include "core/http/openai_request.h"
#include "core/http/request_json.h"
#include "core/http/service.h"

namespace varve::http {
namespace {

using nlohmann::json;

ParseOptions parse_options(const Service& service) {
  const ServerConfig config = service.dispatcher->server_config();
  return {config.choices_max, config.unknown_fields};
}

absl::StatusOr<std::vector<int32_t>> tokens_of(const Text& text, Json& body) {
  if (body.contains("messages")) return chat_tokens(text, take_messages(body.at("messages")));
  const bool is_content = body.contains("content");
  if (!is_content && !body.contains("prompt"))
    return invalid("prompt", "found none, expected one of content, prompt and messages");
  const bool add_special =
      is_content ? body.value("add_special", false) : body.value("add_special_tokens", true);
  return text.tokenize(body.at(is_content ? "content" : "prompt").get_ref<const std::string&>(),
                       add_special, body.value("parse_special", true));
}

absl::StatusOr<json> tokenize(const Service& service, const Request& request) {
  std::vector<std::string> warnings;
  absl::StatusOr<Json> body =
      checked_body(request.body, "TokenizeRequest", parse_options(service), &warnings);
  if (!body.ok()) return body.status();
  const std::shared_ptr<const Lane> held = service.dispatcher->main_lane();
  const Lane& lane = *held;
  const absl::StatusOr<std::vector<int32_t>> tokens = tokens_of(lane.text(), *body);
  if (!tokens.ok()) return tokens.status();
  json answer = {
      {"tokens", *tokens}, {"count", tokens->size()}, {"max_model_len", lane.model().max_tokens}};
  const bool with_pieces = body->value("with_pieces", false);
  if (!with_pieces && !body->value("return_token_strs", false)) return answer;
  json pieces = json::array(), names = json::array();
  for (const int32_t token : *tokens) {
    names.push_back(token_name(lane.text(), token));
    pieces.push_back({{"id", token}, {"piece", names.back()}});
  }
  if (with_pieces) answer["tokens"] = std::move(pieces);
  answer["token_strs"] = std::move(names);
  return answer;
}

absl::StatusOr<json> detokenize(const Service& service, const Request& request) {
  std::vector<std::string> warnings;
  const absl::StatusOr<Json> body =
      checked_body(request.body, "DetokenizeRequest", parse_options(service), &warnings);
  if (!body.ok()) return body.status();
  const std::shared_ptr<const Lane> held = service.dispatcher->main_lane();
  const Lane& lane = *held;
  const auto tokens = body->at("tokens").get<std::vector<int32_t>>();
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (static_cast<uint64_t>(tokens[i]) < lane.model().vocab_size) continue;
    return invalid(absl::StrCat("tokens[", i, "]"),
                   absl::StrCat("found ", tokens[i], ", expected less than the vocabulary's ",
                                lane.model().vocab_size));
  }
  const absl::StatusOr<std::string> text = lane.text().detokenize(tokens, true);
  if (!text.ok()) return text.status();
  return json{{"content", *text}, {"prompt", *text}};
}

// What closes the assistant's turn in a chat, else the vocabulary's first end token.
std::optional<int32_t> end_token(const Lane& lane) {
  static constexpr char kMark[] = "varve-answer-varve";
  const absl::StatusOr<std::string> chat = lane.text().chat({{"user", "A"}, {"assistant", kMark}});
  const size_t at = chat.ok() ? chat->find(kMark) : std::string::npos;
  if (at != std::string::npos) {
    const absl::StatusOr<std::vector<int32_t>> after =
        lane.text().tokenize(std::string_view(*chat).substr(at + sizeof(kMark) - 1), false, true);
    if (after.ok() && !after->empty() && lane.text().is_end(after->front())) return after->front();
  }
  const auto n = static_cast<int32_t>(lane.model().vocab_size);
  for (int32_t token = 0; token < n; ++token) {
    if (lane.text().is_end(token)) return token;
  }
  return std::nullopt;
}

std::optional<int32_t> start_token(const Lane& lane) {
  const absl::StatusOr<std::vector<int32_t>> tokens = lane.text().tokenize("", true, false);
  if (!tokens.ok() || tokens->empty() || lane.text().is_end(tokens->front())) return std::nullopt;
  return tokens->front();
}

json tokenizer_info(const Service& service) {
  const std::shared_ptr<const Lane> held = service.dispatcher->main_lane();
  const Lane& lane = *held;
  json info = {{"vocab_size", lane.model().vocab_size},
               {"max_model_len", lane.model().max_tokens},
               {"model", service.model_name},
               {"chat_template", nullptr}};  // chats are rendered here: POST /tokenize {messages}
  const auto add = [&](const std::string& name, std::optional<int32_t> token) {
    info[name] = nullptr;
    info[name + "_id"] = nullptr;
    if (!token.has_value()) return;
    info[name] = token_name(lane.text(), *token);
    info[name + "_id"] = *token;
  };
  const std::optional<int32_t> end = end_token(lane);
  add("eos_token", end);
  add("pad_token", end);
  add("bos_token", start_token(lane));
  return info;
}

}  // namespace

void add_text_routes(Service& service, std::vector<Route>& routes) {
  const auto add = [&](const char* method, const char* pattern, auto make) {
    const Handler handler = [&service, make](const Request& request,
                                             const std::shared_ptr<Responder>& responder) {
      reply(*responder, make(service, request));
    };
    routes.push_back({method, pattern, Scope::kInference, handler, false});
  };
  add("POST", "/tokenize", tokenize);
  add("POST", "/detokenize", detokenize);
  add("GET", "/tokenizer_info", [](const Service& from, const Request&) {
    return absl::StatusOr<json>(tokenizer_info(from));
  });
}

}  // namespace varve::http
