// Routes /v1/chat/completions, /v1/completions, /v1/models, /v1/embeddings.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/http/contexts.h"
#include "core/http/openai_run.h"
#include "core/http/request_json.h"
#include "core/http/service.h"

namespace varve::http {
namespace {

using nlohmann::json;

constexpr size_t kConversationBytesMax = 256;

ParseOptions parse_options(const ServerConfig& config) {
  return {config.choices_max, config.unknown_fields};
}

absl::Status take_headers(const Request& request, GenerateCall* call, Arrival* arrival) {
  const std::string_view conversation = request.header("X-Conversation-Id").value_or("");
  if (conversation.size() > kConversationBytesMax) {
    return invalid("X-Conversation-Id",
                   absl::StrCat("found ", conversation.size(), " bytes, expected at most ",
                                kConversationBytesMax));
  }
  if (call->conversation.empty()) call->conversation = conversation;
  arrival->who = request.who;
  arrival->service_tier = call->service_tier;
  arrival->conversation = conversation_of(*call);
  arrival->forced_arm = request.header("X-Varve-Arm").value_or("");
  return absl::OkStatus();
}

void log_warnings(const Service& service, const ServerConfig& config, const Request& request,
                  const GenerateCall& call) {
  if (call.warnings.empty() || !service.log) return;
  const LogLevel level = config.unknown_fields == "warn" ? LogLevel::kWarning : LogLevel::kInfo;
  service.log(level, "http", absl::StrCat(request.id, ": ", absl::StrJoin(call.warnings, "; ")));
}

absl::StatusOr<RunParts> prepare(const Service& service, const Request& request, bool is_chat) {
  const ServerConfig config = service.dispatcher->server_config();
  absl::StatusOr<GenerateCall> call = is_chat
                                          ? parse_chat(request.body, parse_options(config))
                                          : parse_completion(request.body, parse_options(config));
  if (!call.ok()) return call.status();
  log_warnings(service, config, request, *call);

  RunParts parts;
  parts.call = *std::move(call);
  const absl::Status status = take_headers(request, &parts.call, &parts.arrival);
  if (!status.ok()) return status;
  std::shared_ptr<const Context> context;
  if (!parts.call.context.empty()) {
    absl::StatusOr<std::shared_ptr<const Context>> found =
        service.contexts->find(request.who.tenant, parts.call.context);
    if (!found.ok()) return found.status();
    context = *std::move(found);
  }
  absl::StatusOr<Placement> placement = service.dispatcher->place(parts.arrival);
  if (!placement.ok()) return placement.status();
  parts.placement = *std::move(placement);
  if (context != nullptr) stay_with(context->placement, &parts.placement);
  absl::StatusOr<std::vector<Prompt>> prompts =
      make_prompts(parts.call, parts.placement, context.get());
  if (!prompts.ok()) return prompts.status();
  parts.prompts = *std::move(prompts);
  parts.request_id = request.id;
  parts.model_name = service.model_name;
  parts.fingerprint = absl::StrCat("varve-", service.version);
  parts.ping_interval = config.ping_interval;
  parts.dispatcher = service.dispatcher;
  return parts;
}

Handler generation_handler(Service& service, const std::shared_ptr<Worker>& worker, bool is_chat) {
  return [&service, worker, is_chat](const Request& request,
                                     const std::shared_ptr<Responder>& responder) {
    absl::StatusOr<RunParts> parts = prepare(service, request, is_chat);
    if (!parts.ok()) return responder->send(error_response(parts.status()));
    parts->worker = worker;
    run_generation(*std::move(parts), responder);
  };
}

json model_json(const Service& service) {
  return {{"id", service.model_name},
          {"object", "model"},
          {"created", 0},
          {"owned_by", "varve"},
          {"max_model_len", service.dispatcher->main_lane()->model().max_tokens}};
}

Handler json_handler(std::function<json()> make) {
  return [make = std::move(make)](const Request&, const std::shared_ptr<Responder>& responder) {
    reply(*responder, make());
  };
}

}  // namespace

void add_openai_routes(Service& service, std::vector<Route>& routes) {
  if (service.contexts == nullptr) service.contexts = std::make_shared<Contexts>();
  const std::shared_ptr<Worker> worker = Worker::make();
  constexpr Scope kScope = Scope::kInference;
  routes.push_back(
      {"POST", "/v1/chat/completions", kScope, generation_handler(service, worker, true), false});
  routes.push_back(
      {"POST", "/v1/completions", kScope, generation_handler(service, worker, false), false});
  routes.push_back({"GET", "/v1/models", kScope, json_handler([&service]() -> json {
                      return {{"object", "list"}, {"data", {model_json(service)}}};
                    }),
                    false});
  routes.push_back({"GET", "/v1/models/{id}", kScope,
                    json_handler([&service] { return model_json(service); }), false});
  const Handler no_embeddings = [](const Request&, const std::shared_ptr<Responder>& responder) {
    responder->send(error_response(
        501, "no sentence encoder is loaded: this server answers chats and completions alone"));
  };
  routes.push_back({"POST", "/v1/embeddings", kScope, no_embeddings, false});
}

}  // namespace varve::http
