// Routes /v1/contexts: register a document once, ask about it many times.
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/http/contexts.h"
#include "core/http/openai_prompt.h"
#include "core/http/openai_request.h"
#include "core/http/request_json.h"
#include "core/http/service.h"
#include "core/http/sse.h"

namespace varve::http {
namespace {

using nlohmann::json;

json context_json(const Context& context) {
  json shown = {{"id", context.id},
                {"object", "context"},
                {"name", nullptr},
                {"template", context.is_template},
                {"tokens", context.prefix.size()},
                {"cached_tokens", context.cached_tokens},
                {"created", context.created_s}};
  if (!context.name.empty()) shown["name"] = context.name;
  return shown;
}

// Memory that was lost before (an engine that was reset) is no failure of forgetting.
void unpin(Contexts& contexts, const Context& context, const LogSink& log) {
  if (!contexts.unpin(context)) return;
  const absl::Status status = context.placement.lane->forget_prefix(context.tenant, context.prefix);
  if (!status.ok() && log) {
    log(LogLevel::kWarning, "http",
        absl::StrCat(context.id, " was forgotten, its memory was not found: ", status.message()));
  }
}

// One registration: a place among the tenant's contexts, and a pin, until it ends.
class Registration final : public GenerateSink {
 public:
  Registration(const Service& service, uint32_t held_percent, Contexts::Place place,
               std::shared_ptr<Context> context, std::shared_ptr<Responder> responder,
               std::shared_ptr<EventStream> stream)
      : contexts_(service.contexts),
        held_(service.held),
        log_(service.log),
        held_percent_(held_percent),
        context_(std::move(context)),
        responder_(std::move(responder)),
        stream_(std::move(stream)),
        place_(std::move(place)) {
    contexts_->pin(*context_);
  }
  // What was not submitted left nothing to forget.
  ~Registration() override {
    if (!has_ended_) contexts_->unpin(*context_);
  }

  void on_prompt_progress(uint64_t done, uint64_t n, uint64_t cached) override {
    if (stream_ == nullptr) return;
    json shown = {{"object", "context.progress"}, {"id", context_->id}};
    shown["prompt_progress"] = {{"total", n}, {"cache", cached}, {"processed", done}};
    stream_->data(dump(shown));
  }
  void on_piece(Piece) override {}
  void on_end(const GenerateResult& result) override {
    has_ended_ = true;
    absl::Status status = result.status;
    if (status.ok())
      status = contexts_->hold(*context_, held_, resident_bytes(result.usage), held_percent_);
    if (!status.ok()) {
      unpin(*contexts_, *context_, log_);
      return fail(with_prompt_param(std::move(status), context_->param));
    }
    context_->cached_tokens = result.cached_tokens;
    const json shown = context_json(*context_);
    contexts_->add(*std::move(place_), context_);
    if (stream_ == nullptr) return reply(*responder_, shown);
    stream_->data(dump(shown));
    stream_->finish();
  }

  void fail(const absl::Status& status) {
    place_.reset();
    if (stream_ == nullptr) return responder_->send(error_response(status));
    stream_->fail(error_response(status));
  }

 private:
  const std::shared_ptr<Contexts> contexts_;
  const std::shared_ptr<HeldMemory> held_;
  const LogSink log_;
  const uint32_t held_percent_;
  const std::shared_ptr<Context> context_;
  const std::shared_ptr<Responder> responder_;
  const std::shared_ptr<EventStream> stream_;  // null: answered whole
  std::optional<Contexts::Place> place_;
  bool has_ended_ = false;
};

absl::Status fill(Json& body, const Lane& lane, Context* context) {
  const bool has_text = body.contains("text");
  if (has_text == body.contains("messages"))
    return invalid("text", "expected either text or messages");
  context->name = body.value("name", "");
  context->param = has_text ? "text" : "messages";
  context->is_template = body.value("template", true);
  if (!context->is_template) {
    if (!has_text) return invalid("messages", "found with \"template\": false, expected text");
    absl::StatusOr<std::vector<int32_t>> tokens =
        lane.text().tokenize(body.at("text").get_ref<const std::string&>(), true, true);
    if (!tokens.ok()) return tokens.status();
    context->prefix = *std::move(tokens);
    return absl::OkStatus();
  }
  std::vector<ChatMessage> messages;
  if (has_text) {
    messages.push_back({"user", std::move(body.at("text").get_ref<std::string&>())});
  } else {
    messages = take_messages(body.at("messages"));
  }
  return prepare_messages(lane.text(), std::move(messages), context);
}

struct Prepared {
  std::shared_ptr<Context> context;
  Arrival arrival;
  Placement placement;
  bool stream = false;
};

absl::StatusOr<Prepared> prepare(const Service& service, const ServerConfig& config,
                                 const Request& request) {
  std::vector<std::string> warnings;
  absl::StatusOr<Json> body = checked_body(request.body, "ContextRequest",
                                           {config.choices_max, config.unknown_fields}, &warnings);
  if (!body.ok()) return body.status();
  Prepared prepared;
  prepared.stream = body->value("stream", false);
  prepared.context = std::make_shared<Context>();
  prepared.context->id = new_context_id();
  prepared.context->tenant = request.who.tenant;
  prepared.context->created_s = absl::ToUnixSeconds(absl::Now());
  prepared.arrival.who = request.who;
  prepared.arrival.service_tier = body->value("service_tier", "");
  // As the requests that name it: the same arm, so the same lane, reads and reuses it.
  prepared.arrival.conversation = prepared.context->id;
  absl::StatusOr<Placement> placement = service.dispatcher->place(prepared.arrival);
  if (!placement.ok()) return placement.status();
  prepared.placement = *std::move(placement);
  prepared.context->placement = prepared.placement;
  absl::Status status = fill(*body, *prepared.placement.lane, prepared.context.get());
  if (!status.ok()) return status;
  const char* const param = prepared.context->param;
  if (prepared.context->prefix.empty())
    return invalid(param, "found no tokens, expected at least one");
  status = check_prompt_length(prepared.placement, prepared.context->prefix.size(), true, param);
  if (!status.ok()) return status;
  const auto room = service.held->room(*prepared.placement.lane, config.held_memory_percent);
  if (!room.ok()) return room.status();
  return prepared;
}

void create(const Service& service, const Request& request,
            const std::shared_ptr<Responder>& responder) {
  const ServerConfig config = service.dispatcher->server_config();
  absl::StatusOr<Contexts::Place> place =
      service.contexts->reserve(request.who.tenant, config.contexts_max);
  if (!place.ok()) return responder->send(error_response(place.status()));
  absl::StatusOr<Prepared> prepared = prepare(service, config, request);
  if (!prepared.ok()) return responder->send(error_response(prepared.status()));
  std::shared_ptr<EventStream> stream;
  if (prepared->stream) stream = EventStream::start(responder, config.ping_interval);
  GenerateRequest reading;
  reading.id = request.id;
  reading.prompt = prepared->context->prefix;
  reading.pins_prefix = true;
  const auto registration =
      std::make_shared<Registration>(service, config.held_memory_percent, *std::move(place),
                                     prepared->context, responder, std::move(stream));
  const auto cancel = std::make_shared<std::atomic<uint32_t>>(0);
  responder->on_gone([cancel] { cancel->store(1); });
  const absl::Status status = service.dispatcher->submit(prepared->arrival, prepared->placement,
                                                         std::move(reading), registration, cancel);
  if (!status.ok()) registration->fail(status);
}

absl::StatusOr<json> list(const Service& service, const Request& request) {
  json data = json::array();
  for (const auto& context : service.contexts->list(request.who.tenant))
    data.push_back(context_json(*context));
  return json{{"object", "list"}, {"data", std::move(data)}};
}

absl::StatusOr<json> get(const Service& service, const Request& request) {
  const auto context = service.contexts->find(request.who.tenant, request.path_values.at("id"));
  if (!context.ok()) return context.status();
  return context_json(**context);
}

absl::StatusOr<json> forget(const Service& service, const Request& request) {
  const auto context = service.contexts->remove(request.who.tenant, request.path_values.at("id"));
  if (!context.ok()) return context.status();
  unpin(*service.contexts, **context, service.log);
  return json{{"id", (*context)->id}, {"object", "context.deleted"}, {"deleted", true}};
}

}  // namespace

void add_context_routes(Service& service, std::vector<Route>& routes) {
  if (service.contexts == nullptr) service.contexts = std::make_shared<Contexts>();
  if (service.held == nullptr) service.held = std::make_shared<HeldMemory>();
  const auto add = [&](const char* method, const char* pattern, Handler handler) {
    routes.push_back({method, pattern, Scope::kInference, std::move(handler), false});
  };
  const auto answering = [&service](auto make) -> Handler {
    return [&service, make](const Request& request, const std::shared_ptr<Responder>& responder) {
      reply(*responder, make(service, request));
    };
  };
  add("POST", "/v1/contexts",
      [&service](const Request& request, const std::shared_ptr<Responder>& responder) {
        create(service, request, responder);
      });
  add("GET", "/v1/contexts", answering(list));
  add("GET", "/v1/contexts/{id}", answering(get));
  add("DELETE", "/v1/contexts/{id}", answering(forget));
}

}  // namespace varve::http
