// varve serve: the profile's stacks behind an OpenAI-compatible server, until a signal ends it.
#include <chrono>
#include <csignal>
#include <iostream>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/config/options.h"
#include "core/http/server.h"
#include "core/http/service.h"
#include "core/metrics/metrics.h"
#include "core/plugin/crash_record.h"
#include "core/route/api_keys.h"
#include "core/route/dispatcher.h"
#include "core/route/experiment_record.h"
#include "core/route/exposure_log.h"
#include "core/route/replay.h"
#include "tools/varve/command.h"
#include "tools/varve/serve_stacks.h"
#include "tools/varve/server_log.h"

namespace varve::cli {
namespace {

constexpr char kWho[] = "host";
constexpr int kExitCutOff = 3;
constexpr uint64_t kMebibyte = uint64_t{1} << 20;
// What is answered when the lanes have ended still has to reach its client.
constexpr absl::Duration kLastBytes = absl::Seconds(5);

// Everything of a server in order of construction; the last is destroyed first.
struct Serving {
  Serving(const ServeConfig& config, uint32_t n_threads)
      : log(config.server.log_format, config.server.log_level), threads(n_threads) {}
  ~Serving() { replay->stop(); }

  ServerLog log;
  ThreadPool threads;
  Turnstile turnstile;
  std::unique_ptr<Metrics> metrics;
  std::shared_ptr<Replay> replay = Replay::make();
  std::unique_ptr<Dispatcher> dispatcher;
  http::Service service;
  std::unique_ptr<http::Server> server;
};

// Delivered to whoever waits for them, not to handlers. Before any thread starts.
sigset_t block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of its write
  return signals;
}

Metrics::Names metric_names(const ServeConfig& config,
                            const std::map<std::string, std::unique_ptr<Lane>>& lanes) {
  Metrics::Names names;
  std::set<std::string> arms;
  names.classes = class_names(config);
  for (const auto& [name, lane] : lanes) names.stacks.push_back(name);
  for (const ExperimentConfig& experiment : config.experiments) {
    for (std::string& arm : arm_names(experiment)) arms.insert(std::move(arm));
  }
  names.arms.assign(arms.begin(), arms.end());
  names.model = lanes.at(kMainStack)->model().name;
  names.version = VARVE_VERSION;
  return names;
}

PluginMetrics plugin_metrics(const PluginReport& report) {
  PluginMetrics metrics;
  metrics.name = absl::StrCat(report.info.kind, "/", report.info.name);
  metrics.version = report.info.version;
  metrics.sha256 = report.info.sha256;
  metrics.errors = report.misbehaved;
  metrics.has_worker = report.worker.has_value();
  if (!metrics.has_worker) return metrics;
  metrics.worker_quarantined = report.worker->is_quarantined;
  metrics.worker_calls = report.worker->calls;
  metrics.worker_restarts = report.worker->restarts;
  metrics.worker_fallback_calls = report.worker->fallback_calls;
  metrics.worker_call_s = static_cast<double>(report.worker->call_ns) * 1e-9;
  return metrics;
}

std::vector<LaneMetrics> lane_metrics(const Dispatcher& dispatcher) {
  std::vector<LaneMetrics> all;
  for (const LaneInfo& info : dispatcher.lanes()) {
    const LaneStatus status = info.lane->status();
    LaneMetrics metrics;
    metrics.stack = info.name();
    metrics.generation = info.generation;
    metrics.running = status.running;
    metrics.waiting = status.waiting;
    metrics.concurrency = status.concurrency;
    metrics.queue_max = status.queue_max;
    metrics.steps = status.steps;
    metrics.step_clips = status.step_clips;
    metrics.demotions = status.demotions;
    metrics.peak = status.peak;
    metrics.last_progress_age_s =
        absl::ToDoubleSeconds(status.since_progress.value_or(absl::ZeroDuration()));
    metrics.oldest_wait_s = absl::ToDoubleSeconds(status.oldest_wait);
    metrics.usage = status.usage;
    metrics.kept_prefix_bytes = status.kept_prefix_bytes;
    metrics.budget_bytes = status.budget_bytes;
    metrics.hot_limit_tokens = status.hot_limit_tokens;
    metrics.used_bytes = status.used_bytes;
    for (const PluginReport& report : info.lane->stack().report())
      metrics.plugins.push_back(plugin_metrics(report));
    all.push_back(std::move(metrics));
  }
  return all;
}

absl::Status start_dispatcher(const ServeConfig& config, Serving& serving) {
  DispatcherParts parts;
  absl::StatusOr<Lanes> lanes =
      start_lanes(config, serving.threads, serving.turnstile, serving.log.sink());
  if (!lanes.ok()) return lanes.status();
  parts.lanes = std::move(lanes->by_stack);
  parts.stack_digests = lanes->digests;
  parts.loader = stack_loader(serving.threads, serving.turnstile, serving.log.sink());
  parts.lines = serving.log.sink();
  serving.metrics = Metrics::make(metric_names(config, parts.lanes));
  parts.metrics = serving.metrics.get();
  if (!config.server.experiment_log_path.empty()) {
    absl::StatusOr<std::unique_ptr<ExposureLog>> log = ExposureLog::open(
        config.server.experiment_log_path, config.server.experiment_log_mb_max * kMebibyte);
    if (!log.ok()) return log.status();
    parts.log = *std::move(log);
  }
  ReplayParts replay{nullptr, &serving.turnstile, parts.log.get(), serving.metrics.get()};
  parts.on_ended = [played = serving.replay](
                       const Placement& placement, const GenerateRequest& request,
                       const std::vector<int32_t>& answer,
                       const GenerateResult&) { played->offer(placement, request, answer); };
  absl::StatusOr<std::unique_ptr<Dispatcher>> dispatcher =
      Dispatcher::make(config, std::move(parts));
  if (!dispatcher.ok()) return dispatcher.status();
  serving.dispatcher = *std::move(dispatcher);
  serving.metrics->set_lanes([&serving] { return lane_metrics(*serving.dispatcher); });
  replay.dispatcher = serving.dispatcher.get();
  serving.replay->start(std::move(replay));
  return absl::OkStatus();
}

std::vector<http::Route> make_routes(http::Service& service) {
  std::vector<http::Route> routes;
  http::add_openai_routes(service, routes);
  http::add_text_routes(service, routes);
  http::add_context_routes(service, routes);
  http::add_mri_routes(service, routes);
  http::add_health_routes(service, routes);
  http::add_debug_routes(service, routes);
  http::add_openapi_route(service, routes);
  http::add_admin_routes(service, routes);
  return routes;
}

absl::Status start_server(const ServeConfig& config, const Profile& profile, Serving& serving) {
  http::Service& service = serving.service;
  service.dispatcher = serving.dispatcher.get();
  service.metrics = serving.metrics.get();
  service.turnstile = &serving.turnstile;
  service.log = serving.log.sink();
  service.version = VARVE_VERSION;
  service.model_name = profile.text("model", "name");
  if (service.model_name.empty())
    service.model_name = serving.dispatcher->main_lane()->model().name;
  http::ServerOptions options;
  options.config = config.server;
  options.log = serving.log.sink();
  options.authenticate = [&serving](std::string_view key) {
    return serving.dispatcher->authenticate(key);
  };
  options.on_answered = [&serving](const std::string& route, int status, double seconds) {
    serving.metrics->http(route, status, seconds);
  };
  absl::StatusOr<std::unique_ptr<http::Server>> server =
      http::Server::start(std::move(options), make_routes(service));
  if (!server.ok()) return server.status();
  serving.server = *std::move(server);
  return absl::OkStatus();
}

// Reads the profile anew; on any mistake everything stays as it was.
absl::StatusOr<std::vector<std::string>> reload(const ProfileSources& sources, Serving& serving) {
  const auto read = [&]() -> absl::StatusOr<std::vector<std::string>> {
    const absl::StatusOr<Profile> profile = Profile::load(sources);
    if (!profile.ok()) return profile.status();
    const absl::StatusOr<ServeConfig> config = load_serve_config(*profile, sources);
    if (!config.ok()) return config.status();
    absl::StatusOr<std::vector<std::string>> changes = serving.dispatcher->reload(*config);
    if (!changes.ok()) return changes;
    serving.log.set_level(config->server.log_level);
    return changes;
  };
  absl::StatusOr<std::vector<std::string>> changes = read();
  const LogSink log = serving.log.sink();
  serving.metrics->reloaded(changes.ok());
  if (!changes.ok()) {
    log(LogLevel::kError, kWho,
        absl::StrCat("reload refused, the old settings stay: ", changes.status().message()));
    return changes;
  }
  log(LogLevel::kInfo, kWho, absl::StrCat("reloaded, ", changes->size(), " changes"));
  for (const std::string& change : *changes) log(LogLevel::kInfo, kWho, change);
  return changes;
}

// A second SIGTERM or SIGINT while the first one's work is under way.
void die_at_next(sigset_t signals) {
  std::thread([signals] {
    for (int signal = 0;;) {
      if (sigwait(&signals, &signal) == 0 && signal != SIGHUP) _exit(kExitInterrupted);
    }
  }).detach();
}

int drain(const ServeConfig& config, sigset_t signals, Serving& serving) {
  const LogSink log = serving.log.sink();
  die_at_next(signals);
  serving.service.draining = true;
  log(LogLevel::kInfo, kWho,
      absl::StrCat("draining for up to ", absl::FormatDuration(config.server.shutdown_timeout),
                   "; a second signal ends at once"));
  const absl::Time deadline = absl::Now() + config.server.shutdown_timeout;
  const auto end =
      std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(config.server.shutdown_timeout);
  const bool is_busy = serving.server->open_requests() > 0;
  serving.replay->stop();
  serving.dispatcher->drain(deadline);
  const bool cut_off = is_busy && std::chrono::steady_clock::now() >= end;
  const auto last = std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(kLastBytes);
  while (serving.server->open_requests() > 0 && std::chrono::steady_clock::now() < last)
    absl::SleepFor(absl::Milliseconds(10));
  serving.server->stop_accepting();
  serving.server.reset();
  log(LogLevel::kInfo, kWho, cut_off ? "ended; some answers were cut off" : "ended");
  return cut_off ? kExitCutOff : kExitOk;
}

int serve(const CommandLine& line) {
  const sigset_t signals = block_signals();
  const ProfileSources sources = line.profile_sources();
  const absl::StatusOr<Profile> profile = line.profile();
  if (!profile.ok()) return report(profile.status(), kExitUsage);
  const absl::StatusOr<ServeConfig> config = load_serve_config(*profile, sources);
  if (!config.ok()) return report(config.status(), kExitUsage);
  // Before models are loaded for nothing.
  if (const auto keys = load_keys(*config); !keys.ok()) return report(keys.status(), kExitUsage);
  if (const absl::Status handled = install_crash_handler(*profile); !handled.ok())
    return report(handled, kExitUsage);

  Serving serving(*config, runtime_options(*profile).threads);
  absl::Status status = start_dispatcher(*config, serving);
  if (status.ok()) {
    serving.service.reload = [&] { return reload(sources, serving); };
    status = start_server(*config, *profile, serving);
  }
  if (!status.ok()) return report(status, kExitFailure);
  serving.log.sink()(
      LogLevel::kInfo, kWho,
      absl::StrCat("listening on http://", config->server.host, ":", serving.server->port(),
                   " with ", serving.dispatcher->lanes().size(), " stacks"));
  for (int signal = 0;;) {
    if (sigwait(&signals, &signal) != 0) continue;
    if (signal != SIGHUP) return drain(*config, signals, serving);
    reload(sources, serving).IgnoreError();
  }
}

}  // namespace

int cmd_serve(const Arguments& arguments) {
  CommandLine line(
      "varve serve [option]...",
      "Serves the profile's stacks over HTTP: OpenAI-compatible routes, request "
      "classes, experiments, metrics.\n"
      "SIGTERM or SIGINT: finish what runs, then end; the second one ends at once. "
      "SIGHUP: read keys, classes,\nweights, limits and log level anew.\n"
      "Exit codes: 0 all answers were finished; 1 could not start; 2 bad command line, "
      "profile or keys;\n3 the shutdown time-out cut answers off; 130 a second signal.");
  if (const std::optional<int> code = line.parse(arguments)) return *code;
  return serve(line);
}

}  // namespace varve::cli
