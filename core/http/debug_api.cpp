// The health board as JSON: where the time goes, what is wrong with that, and every stack's lane,
// memory and plugins. `varve doctor --url` prints it.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "core/http/lane_watch.h"
#include "core/http/request_json.h"
#include "core/http/service.h"
#include "core/metrics/timings_text.h"

namespace varve::http {
namespace {

using nlohmann::json;

json rules_of(const TimingShares& shares) {
  json rules = json::array();
  const auto add = [&](const char* name, double share, double limit) {
    rules.push_back(
        {{"part", name}, {"share", share}, {"limit", limit}, {"broken", share > limit}});
  };
  add("local", shares.local, kLocalShareMax);
  add("sparse", shares.sparse, kSparseShareMax);
  add("kv_cache", shares.kv_cache, kKvShareMax);
  return rules;
}

json attention_of(const mri_timings& sum) {
  const TimingShares shares = timing_shares(sum);
  return {{"timed_tokens", sum.n_tokens},
          {"timings", timings_json(sum)},
          {"shares",
           {{"local", shares.local},
            {"sparse", shares.sparse},
            {"summary", shares.summary},
            {"kv_cache", shares.kv_cache},
            {"other", shares.other}}},
          {"rules", rules_of(shares)},
          {"advice", timings_advice(sum)}};
}

// Since the last token of all: for people. Probes compare two looks.
absl::Duration progress_age(const LaneStatus& status) {
  if (status.running == 0 || !status.since_progress.has_value()) return absl::ZeroDuration();
  return *status.since_progress;
}

json lane_of(const LaneStatus& status) {
  const double age_s = absl::ToDoubleSeconds(progress_age(status));
  return {{"running", status.running},
          {"waiting", status.waiting},
          {"concurrency", status.concurrency},
          {"queue_max", status.queue_max},
          {"steps", status.steps},
          {"step_clips", status.step_clips},
          {"demotions", status.demotions},
          {"peak", status.peak},
          {"oldest_wait_seconds", absl::ToDoubleSeconds(status.oldest_wait)},
          {"no_progress_seconds", age_s},
          {"stalled", age_s > static_cast<double>(kStallMax.count())}};
}

json kv_of(const LaneStatus& status) {
  const mri_kv_usage& usage = status.usage;
  return {{"hot_bytes", usage.hot_bytes},
          {"warm_bytes", usage.warm_bytes},
          {"cold_bytes", usage.cold_bytes},
          {"backing_bytes", usage.backing_bytes},
          {"bf16_bytes", usage.bf16_bytes},
          {"hot_tokens", usage.hot_tokens},
          {"warm_tokens", usage.warm_tokens},
          {"cold_tokens", usage.cold_tokens},
          {"kept_prefix_bytes", status.kept_prefix_bytes},
          {"budget_bytes", status.budget_bytes},
          {"used_bytes", status.used_bytes}};
}

json worker_of(const WorkerStatus& worker) {
  return {{"pid", worker.pid},
          {"quarantined", worker.is_quarantined},
          {"failures", worker.failures},
          {"restarts", worker.restarts},
          {"calls", worker.calls},
          {"call_seconds", static_cast<double>(worker.call_ns) * 1e-9},
          {"fallback_calls", worker.fallback_calls}};
}

json plugins_of(const Stack& stack) {
  json plugins = json::array();
  for (const PluginReport& report : stack.report()) {
    plugins.push_back({{"kind", report.info.kind},
                       {"name", report.info.name},
                       {"version", report.info.version},
                       {"sha256", report.info.sha256},
                       {"errors", report.misbehaved},
                       {"worker", report.worker ? worker_of(*report.worker) : json(nullptr)}});
  }
  return plugins;
}

json board(const Service& service) {
  json stacks = json::array();
  for (const LaneInfo& info : service.dispatcher->lanes()) {
    const LaneStatus status = info.lane->status();
    stacks.push_back({{"stack", info.name()},
                      {"generation", info.generation},
                      {"current", info.is_current},
                      {"digest", info.digest},
                      {"lane", lane_of(status)},
                      {"kv", kv_of(status)},
                      {"plugins", plugins_of(info.lane->stack())}});
  }
  return {{"version", service.version},
          {"model", service.model_name},
          {"draining", service.draining.load()},
          {"attention", attention_of(service.metrics->timings())},
          {"stacks", stacks}};
}

}  // namespace

void add_debug_routes(Service& service, std::vector<Route>& routes) {
  Route route;
  route.method = "GET";
  route.pattern = "/debug/attention";
  route.scope = Scope::kAdmin;
  route.handler = [s = &service](const Request&, std::shared_ptr<Responder> responder) {
    Response response;
    response.body = dump(board(*s));
    response.headers.emplace_back("Cache-Control", "no-store");
    responder->send(std::move(response));
  };
  routes.push_back(std::move(route));
}

}  // namespace varve::http
