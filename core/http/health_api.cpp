// Is it alive, is it ready, what is it, and its metrics. Public, so that probes need no key; the
// metrics tell class and experiment names, so they need one as soon as there are keys.
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/text.h"
#include "core/http/lane_watch.h"
#include "core/http/request_json.h"
#include "core/http/service.h"
#include "mri/version.h"

namespace varve::http {
namespace {

using nlohmann::json;

Response json_response(int status, const json& body) {
  Response response;
  response.status = status;
  response.body = dump(body);
  response.headers.emplace_back("Cache-Control", "no-store");
  return response;
}

// Lanes that run requests and compute nothing; empty when all is well.
json stalled_lanes(const Dispatcher& dispatcher, LaneWatch& watch) {
  json stalled = json::array();
  for (const LaneInfo& info : dispatcher.lanes()) {
    const std::string name = info.name();
    const LaneStatus status = info.lane->status();
    const auto waited = watch.stalled_for(name, status, LaneWatch::Clock::now());
    if (waited <= kStallMax) continue;
    stalled.push_back({{"stack", name},
                       {"running", status.running},
                       {"no_progress_seconds", std::chrono::duration<double>(waited).count()}});
  }
  return stalled;
}

Response live(const Service& service, LaneWatch& watch) {
  const json stalled = stalled_lanes(*service.dispatcher, watch);
  if (stalled.empty()) return json_response(200, {{"status", "ok"}});
  return json_response(503, {{"status", "stalled"}, {"lanes", stalled}});
}

Response ready(const Service& service, LaneWatch& watch) {
  if (service.draining) {
    return json_response(
        503,
        {{"status", "draining"},
         {"reason", "the server is shutting down: what runs is finished, nothing new is taken"}});
  }
  return live(service, watch);
}

// For clients that look once before they start: 200 as long as somebody answers.
Response health(const Service& service, LaneWatch& watch) {
  Response response = ready(service, watch);
  response.status = 200;
  return response;
}

Response version(const Service& service) {
  return json_response(200, {{"version", service.version},
                             {"model", service.model_name},
                             {"mri", version_text(MRI_HEADER_VERSION)}});
}

Response metrics(const Service& service) {
  Response response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = service.metrics->text();
  return response;
}

}  // namespace

void add_health_routes(Service& service, std::vector<Route>& routes) {
  const auto watch = std::make_shared<LaneWatch>();
  const auto add = [&](std::string pattern, Scope scope, auto answer) {
    Route route;
    route.method = "GET";
    route.pattern = std::move(pattern);
    route.scope = scope;
    route.is_quiet = true;
    route.handler = [answer](const Request&, std::shared_ptr<Responder> responder) {
      responder->send(answer());
    };
    routes.push_back(std::move(route));
  };
  const Service* s = &service;
  for (const char* pattern : {"/livez", "/v2/health/live"})
    add(pattern, Scope::kPublic, [s, watch] { return live(*s, *watch); });
  for (const char* pattern : {"/readyz", "/v2/health/ready"})
    add(pattern, Scope::kPublic, [s, watch] { return ready(*s, *watch); });
  add("/health", Scope::kPublic, [s, watch] { return health(*s, *watch); });
  add("/version", Scope::kPublic, [s] { return version(*s); });
  // Without keys everybody may read it, and keys that a reload brings close it.
  add("/metrics", Scope::kInference, [s] { return metrics(*s); });
}

}  // namespace varve::http
