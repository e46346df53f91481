// /mri/*: the runtime interface over HTTP. The mapping is described in core/http/README.md.
#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/engine/lane_context.h"
#include "core/http/mri_calls.h"
#include "core/http/mri_queue.h"
#include "core/http/mri_routes.h"
#include "core/http/mri_version.h"
#include "core/http/request_json.h"

namespace varve::http {
namespace {

constexpr size_t kThreads = 2;

// One request on its way through the queue.
struct Exchanged {
  std::shared_ptr<Responder> responder;
  uint32_t served = 0;
  MriAnswer body;
  MriCancel cancel = std::make_shared<std::atomic<uint32_t>>(0);

  void reply(absl::StatusOr<nlohmann::json> json) {
    Response response =
        json.ok() ? std::move(body).response(*std::move(json)) : error_response(json.status());
    add_mri_headers(served, &response);
    responder->send(std::move(response));
  }
};
using Call = std::shared_ptr<Exchanged>;

bool wants_binary(const Request& request) {
  const std::string accepted =
      absl::AsciiStrToLower(std::string(request.header("Accept").value_or("")));
  return absl::StrContains(accepted, "application/octet-stream");
}

class MriRoutes {
 public:
  MriRoutes(Service& service, const MriLimits& limits)
      : service_(service),
        limits_(limits),
        contexts_(limits.contexts_per_tenant),
        queue_(kThreads, limits.calls_per_tenant, limits.sweep_interval,
               [this] { contexts_.expire(limits_.idle_timeout); }) {}

  // Parses, then queues; either's error is answered here.
  using Method = absl::Status (MriRoutes::*)(const Request&, const MriFrame&, const Call&);
  void handle(Method method, const Request& request, std::shared_ptr<Responder> responder) {
    MriVersion version = negotiate_mri(request);
    const auto call = std::make_shared<Exchanged>(
        Exchanged{std::move(responder), version.served, MriAnswer(wants_binary(request))});
    if (version.refusal) {
      add_mri_headers(version.served, &*version.refusal);
      return call->responder->send(*std::move(version.refusal));
    }
    const bool has_body = request.method == "POST";
    const absl::StatusOr<MriFrame> frame = has_body ? read_mri_frame(request) : MriFrame{};
    const absl::Status status =
        frame.ok() ? (this->*method)(request, *frame, call) : frame.status();
    if (!status.ok()) call->reply(status);
  }

  absl::Status init(const Request& request, const MriFrame& frame, const Call& call) {
    absl::StatusOr<MriInit> init = parse_init(frame, limits_);
    if (!init.ok()) return init.status();
    Arrival arrival;
    arrival.who = request.who;
    arrival.conversation = absl::StrCat("mri-", init->context_key);
    const absl::StatusOr<Placement> placement = service_.dispatcher->place(arrival);
    if (!placement.ok()) return placement.status();
    const absl::Status limited = limit(*placement, &*init);
    if (!limited.ok()) return limited;
    const absl::Status charged =
        service_.dispatcher->charge(arrival, *placement, init->tokens.size());
    if (!charged.ok()) return charged;
    const auto context = std::make_shared<MriContext>();
    context->tenant = request.who.tenant;
    context->placement = *placement;
    context->runtime = placement->lane->stack().runtime();
    context->priority = placement->priority;
    context->n_vocabulary = placement->lane->model().vocab_size;
    const absl::Status reserved = contexts_.reserve(context->tenant);
    if (!reserved.ok()) return reserved;
    auto run = [this, call, context, init = *std::move(init)]() mutable {
      auto body = make_context(call, std::move(init), context.get());
      // Nobody would know of a context whose client has gone.
      if (!body.ok() || call->responder->gone()) {
        contexts_.unreserve(context->tenant);
      } else {
        (*body)["ctx"] = contexts_.add(context);
      }
      return deliver(call, std::move(body));
    };
    const absl::Status queued = enqueue(call, *context, {}, std::move(run));
    if (!queued.ok()) contexts_.unreserve(context->tenant);
    return queued;
  }

  absl::Status step(const Request& request, const MriFrame& frame, const Call& call) {
    absl::StatusOr<MriStep> step = parse_step(frame, limits_);
    if (!step.ok()) return step.status();
    std::vector<uint64_t> ids;
    uint64_t n_tokens = 0;
    for (MriStepSeq& seq : step->seqs) {
      auto context = contexts_.find(request.who.tenant, seq.ctx);
      if (!context.ok()) return context.status();
      seq.context = *std::move(context);
      ids.push_back(seq.ctx);
      n_tokens += seq.tokens.size();
      if (seq.context->runtime.self != step->seqs.front().context->runtime.self) {
        return invalid("seqs",
                       "found contexts of different stacks; expected those of one: the "
                       "stack is chosen when a context is made");
      }
    }
    const auto first = step->seqs.front().context;
    const auto room = service_.held->room(*first->placement.lane, held_percent());
    if (!room.ok()) return room.status();
    Arrival arrival;
    arrival.who = request.who;
    const absl::Status charged = service_.dispatcher->charge(arrival, first->placement, n_tokens);
    if (!charged.ok()) return charged;
    return enqueue(call, *first, std::move(ids), [this, call, step = *std::move(step)] {
      return deliver(call, run_step(step, limits_, service_.turnstile, call->cancel, &call->body));
    });
  }

  absl::Status summary(const Request& request, const MriFrame& frame, const Call& call) {
    const absl::StatusOr<MriSummary> summary = parse_summary(frame);
    if (!summary.ok()) return summary.status();
    const auto context = contexts_.find(request.who.tenant, summary->ctx);
    if (!context.ok()) return context.status();
    return enqueue(call, **context, {summary->ctx},
                   [this, call, context = *context, summary = *summary] {
                     return deliver(call, run_summary(summary, *context, limits_));
                   });
  }

  absl::Status evict(const Request& request, const MriFrame& frame, const Call& call) {
    absl::StatusOr<MriEvict> evict = parse_evict(frame, limits_);
    if (!evict.ok()) return evict.status();
    const auto context = contexts_.find(request.who.tenant, evict->ctx);
    if (!context.ok()) return context.status();
    const uint64_t id = evict->ctx;
    return enqueue(call, **context, {id}, [call, context = *context, evict = *std::move(evict)] {
      return deliver(call, run_evict(evict, *context, call->served));
    });
  }

  absl::Status release(const Request& request, const MriFrame&, const Call& call) {
    uint64_t id = 0;
    if (!absl::SimpleAtoi(request.path_values.at("id"), &id)) {
      return absl::NotFoundError("no such context: expected the number that init_context gave");
    }
    const absl::Status removed = contexts_.remove(request.who.tenant, id);
    if (removed.ok()) call->reply(nlohmann::json{{"ctx", id}});
    return removed;
  }

 private:
  uint32_t held_percent() const { return service_.dispatcher->server_config().held_memory_percent; }

  // The runtime itself keeps the context within what may be held now.
  absl::StatusOr<nlohmann::json> make_context(const Call& call, MriInit init,
                                              MriContext* context) const {
    const Lane& lane = *context->placement.lane;
    const absl::StatusOr<uint64_t> room = service_.held->room(lane, held_percent());
    if (!room.ok()) return room.status();
    const uint64_t asked_bytes = init.budget_bytes == 0 ? UINT64_MAX : init.budget_bytes;
    if (const uint64_t most = std::min(asked_bytes, *room); most != UINT64_MAX)
      init.budget_bytes = most;
    mri_kv_usage usage{};
    auto body = run_init(init, context, service_.turnstile, call->cancel, &call->body, &usage);
    // With nobody else there, to try again is in vain.
    if (absl::IsResourceExhausted(body.status()) && init.budget_bytes != 0 &&
        is_for_one(LaneRuntime(lane.stack()).memory_usage(), 0)) {
      return invalid("tokens",
                     absl::StrCat(body.status().message(), ": found ", init.tokens.size(),
                                  " tokens; expected as many as fit ", init.budget_bytes,
                                  " bytes (budget_bytes, server.held_memory_percent): send less"),
                     "context_length_exceeded");
    }
    if (!body.ok()) return body;
    const absl::Status held =
        context->held.hold(service_.held, lane, resident_bytes(usage), held_percent());
    if (!held.ok()) return held;
    return body;
  }

  static std::function<void()> deliver(const Call& call, absl::StatusOr<nlohmann::json> body) {
    return [call, body = std::move(body)] { call->reply(body); };
  }

  // What the class may have holds here too.
  static absl::Status limit(const Placement& placement, MriInit* init) {
    const uint64_t prompt_max = placement.max_prompt_tokens;
    if (prompt_max == 0) return absl::OkStatus();  // the stack's own limit
    const uint64_t whole_max = prompt_max + placement.max_answer_tokens;
    if (init->tokens.size() > prompt_max) {
      return invalid("tokens", absl::StrCat("found ", init->tokens.size(), " tokens; class ",
                                            placement.class_name, " may have ", prompt_max));
    }
    if (init->max_tokens > whole_max) {
      return invalid("max_tokens", absl::StrCat("found ", init->max_tokens, "; class ",
                                                placement.class_name, " may have ", whole_max));
    }
    if (init->max_tokens == 0) init->max_tokens = whole_max;
    return absl::OkStatus();
  }

  absl::Status enqueue(const Call& call, const MriContext& context, std::vector<uint64_t> ids,
                       std::function<std::function<void()>()> run) {
    call->responder->on_gone([cancel = call->cancel] { cancel->store(1); });
    return queue_.add({context.tenant, context.priority, std::move(ids), std::move(run)});
  }

  Service& service_;
  const MriLimits limits_;
  MriContexts contexts_;
  MriQueue queue_;  // last: its threads use the others
};

}  // namespace

void add_mri_routes(Service& service, std::vector<Route>& routes, const MriLimits& limits) {
  if (service.held == nullptr) service.held = std::make_shared<HeldMemory>();
  const auto mri = std::make_shared<MriRoutes>(service, limits);
  const auto add = [&](const char* method, const char* pattern, MriRoutes::Method call) {
    Route route{method, pattern, Scope::kInference,
                [mri, call](const Request& request, std::shared_ptr<Responder> responder) {
                  mri->handle(call, request, std::move(responder));
                }};
    route.takes_binary = true;
    routes.push_back(std::move(route));
  };
  add("POST", "/mri/init_context", &MriRoutes::init);
  add("POST", "/mri/forward_step", &MriRoutes::step);
  add("POST", "/mri/get_kv_summary", &MriRoutes::summary);
  add("POST", "/mri/evict_kv", &MriRoutes::evict);
  add("DELETE", "/mri/contexts/{id}", &MriRoutes::release);
}

void add_mri_routes(Service& service, std::vector<Route>& routes) {
  add_mri_routes(service, routes, MriLimits());
}

}  // namespace varve::http
