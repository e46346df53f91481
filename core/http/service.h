// What the routes serve from, and the route table of `varve serve`.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/http/http.h"
#include "core/metrics/metrics.h"
#include "core/route/dispatcher.h"

namespace varve::http {

class Contexts;
class HeldMemory;

struct Service {
  Dispatcher* dispatcher = nullptr;  // outlives the server
  Metrics* metrics = nullptr;
  LogSink log;
  std::string version;
  std::string model_name;
  std::atomic<bool> draining{false};
  // Reads the profile and keys again: what changed, a line each. Any thread; may take a while.
  std::function<absl::StatusOr<std::vector<std::string>>()> reload;
  std::shared_ptr<Contexts> contexts;  // made by the first add_*_routes() that needs it
  std::shared_ptr<HeldMemory> held;    // likewise
  Turnstile* turnstile = nullptr;      // the lanes': steps over /mri pass it too; null: they do not
};

// Each adds its routes; `service` outlives them.
void add_openai_routes(Service& service,
                       std::vector<Route>& routes);  // chat, completions, models, embeddings
void add_text_routes(Service& service,
                     std::vector<Route>& routes);  // tokenize, detokenize, tokenizer_info
void add_context_routes(Service& service, std::vector<Route>& routes);  // /v1/contexts
// /mri/*: contexts live as long as the routes, which must end before the dispatcher does.
void add_mri_routes(Service& service, std::vector<Route>& routes);
void add_health_routes(Service& service,
                       std::vector<Route>& routes);  // livez, readyz, health, version, metrics
void add_debug_routes(Service& service, std::vector<Route>& routes);   // /debug/attention
void add_openapi_route(Service& service, std::vector<Route>& routes);  // /openapi.json
void add_admin_routes(Service& service,
                      std::vector<Route>& routes);  // /admin/experiments, /admin/reload

}  // namespace varve::http
