#include "core/route/dispatcher.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/route/dispatcher_arms.h"
#include "core/route/dispatcher_changes.h"
#include "core/route/dispatcher_record.h"
#include "core/route/dispatcher_sink.h"
#include "core/route/dispatcher_snapshot.h"
#include "core/route/dispatcher_swap.h"
#include "core/route/experiment_record.h"

namespace varve {
namespace {

constexpr char kRetryAfterPayload[] = "varve/retry_after_ms";
constexpr char kAnonymous[] = "anonymous";

// For durations: does not follow the wall clock's jumps.
absl::Time steady_time() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

const char* why_rejected(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return "queue";
    case absl::StatusCode::kUnavailable:
      return "draining";
    default:
      return "invalid";
  }
}

class LaneDispatcher final : public Dispatcher {
 public:
  LaneDispatcher(std::shared_ptr<const Snapshot> snapshot, DispatcherParts parts,
                 std::unique_ptr<Generations> generations)
      : snapshot_(std::move(snapshot)),
        parts_(std::move(parts)),
        n_at_start_(generations->n_added()),
        generations_(std::move(generations)) {
    for (const ExperimentConfig& experiment : current()->experiments)
      log_event(experiment, "started", "");
  }
  // Requests that the lanes abort are still recorded.
  ~LaneDispatcher() override {
    drain(absl::InfinitePast());
    auto last = std::make_shared<Snapshot>(*current());
    last->lanes.clear();
    const MutexLock lock(&mutex_);
    snapshot_ = std::move(last);
  }

  absl::StatusOr<Placement> place(const Arrival& arrival) const override {
    return place_in(*current(), arrival);
  }
  absl::Status submit(const Arrival& arrival, const Placement& placement, GenerateRequest request,
                      std::shared_ptr<GenerateSink> sink, CancelFlag cancel) override;
  absl::Status charge(const Arrival& arrival, const Placement& placement, uint64_t tokens) override;
  absl::StatusOr<Identity> authenticate(std::string_view key) const override;
  std::vector<LaneInfo> lanes() const override;
  std::shared_ptr<Lane> main_lane() const override;
  absl::StatusOr<std::vector<std::string>> reload(const ServeConfig& config) override;
  absl::Status stop_arm(const std::string& experiment, const std::string& arm,
                        const std::string& why) override;
  void add_quality(const QualitySample& sample) override;
  std::vector<ExperimentStatus> experiments() const override;
  ServeConfig config() const override;
  ServerConfig server_config() const override { return current()->config->server; }
  void drain(absl::Time deadline) override;

 private:
  // What is needed of a request when it ends.
  struct Ticket {
    Placement placement;
    std::string key_id;
    Exposure row;  // in an experiment, as is what follows
    uint64_t log_ticket = 0;
    absl::Time deadline;                             // steady_time()
    uint64_t tokens = 0;                             // taken from the quota
    std::shared_ptr<const GenerateRequest> request;  // only when offered to on_ended
  };

  std::shared_ptr<const Snapshot> current() const {
    MutexLock lock(&mutex_);
    return snapshot_;
  }
  bool is_offered(const Snapshot& snapshot, const Placement& placement) const;
  void ended(const Ticket& ticket, const GenerateResult& result,
             const std::vector<int32_t>& answer);
  // In an experiment.
  void begin(const GenerateRequest& request, Ticket& ticket);
  void refused(const Ticket& ticket);
  void ended_in_experiment(const Ticket& ticket, const GenerateResult& result);
  // Calls visit(experiment) when the request counts in one that is in effect.
  template <class Visit>
  void if_counted(const Placement& placement, Visit visit);
  void stop_breaches(const ExperimentConfig& experiment) {
    for (const Arms::Breach& breach : arms_.breaches(experiment, steady_time()))
      (void)stop_arm(experiment.name, breach.arm, breach.why);
  }
  absl::Status rejected(const Placement& placement, const char* why, absl::Status status) {
    parts_.metrics->rejected(placement.class_name, why);
    return status;
  }
  void log_event(const ExperimentConfig& experiment, std::string what, std::string why) {
    if (parts_.log == nullptr) return;
    parts_.log->add(experiment_event(experiment, std::move(what), std::move(why), wall_seconds()));
  }
  void log_changes(const Snapshot& from, const Snapshot& to);
  absl::StatusOr<std::vector<std::string>> reload_alone(const ServeConfig& config);

  mutable Mutex mutex_;
  std::shared_ptr<const Snapshot> snapshot_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> is_reloading_{false};
  Arms arms_;
  const std::unique_ptr<Quotas> quotas_ = Quotas::make();
  DispatcherParts parts_;
  const uint32_t n_at_start_;
  const std::unique_ptr<Generations> generations_;  // last: its lanes call the others
};

absl::StatusOr<Identity> LaneDispatcher::authenticate(std::string_view key) const {
  const std::shared_ptr<const Snapshot> snapshot = current();
  if (snapshot->keys != nullptr) return snapshot->keys->find(key);
  const ServerConfig& server = snapshot->config->server;
  Identity who;
  who.key_id = who.tenant = kAnonymous;
  who.class_name = server.default_class;
  // Without keys only this machine's users reach the server, unless that was waived.
  who.scope = server.allow_public_without_keys ? Scope::kInference : Scope::kAdmin;
  return who;
}

absl::Status LaneDispatcher::charge(const Arrival& arrival, const Placement& placement,
                                    uint64_t tokens) {
  const std::shared_ptr<const ApiKeys> keys = current()->keys;
  if (keys == nullptr) return absl::OkStatus();
  absl::Duration wait;
  absl::Status status = quotas_->take(arrival.who.key_id, keys->limits(arrival.who.key_id), tokens,
                                      steady_time(), &wait);
  if (status.ok()) return status;
  return rejected(placement, "quota", with_retry_after(std::move(status), wait));
}

bool LaneDispatcher::is_offered(const Snapshot& snapshot, const Placement& placement) const {
  if (!parts_.on_ended || placement.experiment.empty() || placement.assignment.arm != 0 ||
      placement.assignment.forced)
    return false;
  const ExperimentConfig* experiment = find_by_name(snapshot.experiments, placement.experiment);
  return experiment != nullptr && experiment->shadow_percent > 0;
}

absl::Status LaneDispatcher::submit(const Arrival& arrival, const Placement& placement,
                                    GenerateRequest request, std::shared_ptr<GenerateSink> sink,
                                    CancelFlag cancel) {
  const uint64_t limit = placement.max_prompt_tokens;
  if (limit != 0 && request.prompt.size() > limit) {
    return rejected(placement, "invalid",
                    absl::InvalidArgumentError(absl::StrCat(
                        "found a prompt of ", request.prompt.size(), " tokens; expected at most ",
                        limit, ", the limit (max_prompt_tokens) of class ", placement.class_name)));
  }
  request.tenant = arrival.who.tenant;
  request.class_name = placement.class_name;
  request.arm = placement.arm;
  request.priority = placement.priority;
  request.deadline = std::min(request.deadline, placement.deadline);
  request.max_tokens = std::min(request.max_tokens, placement.max_answer_tokens);
  request.min_tokens = std::min(request.min_tokens, request.max_tokens);

  auto ticket = std::make_shared<Ticket>();
  ticket->placement = placement;
  ticket->key_id = arrival.who.key_id;
  ticket->tokens = request.prompt.size() + request.max_tokens;
  absl::Status status = charge(arrival, placement, ticket->tokens);
  if (!status.ok()) return status;
  if (is_offered(*current(), placement))
    ticket->request = std::make_shared<const GenerateRequest>(request);
  const bool in_experiment = !placement.experiment.empty();
  if (in_experiment) begin(request, *ticket);

  WatchingSink::Watch watch;
  watch.keeps_answer = ticket->request != nullptr;
  watch.on_started = [this, ticket, in_experiment] {
    if (!in_experiment) return;
    parts_.metrics->exposed(ticket->placement.experiment, ticket->placement.arm);
    parts_.log->started(ticket->log_ticket);
  };
  watch.on_answered = [this, ticket, in_experiment] {
    if (in_experiment) parts_.log->answered(ticket->log_ticket);
  };
  watch.on_ended = [this, ticket](const GenerateResult& result,
                                  const std::vector<int32_t>& answer) {
    ended(*ticket, result, answer);
  };
  status = placement.lane->submit(std::move(request),
                                  std::make_shared<WatchingSink>(std::move(sink), std::move(watch)),
                                  std::move(cancel));
  if (status.ok()) return status;
  if (in_experiment) refused(*ticket);
  quotas_->refund(ticket->key_id, ticket->tokens);
  if (status.code() == absl::StatusCode::kResourceExhausted)
    status = with_retry_after(std::move(status), placement.lane->retry_after());
  const char* why = why_rejected(status);
  return rejected(placement, why, std::move(status));
}

void LaneDispatcher::ended(const Ticket& ticket, const GenerateResult& result,
                           const std::vector<int32_t>& answer) {
  const bool has_run = result.started != absl::InfinitePast();
  const uint64_t used = has_run ? result.prompt_tokens + result.output_tokens : 0;
  if (used < ticket.tokens) quotas_->refund(ticket.key_id, ticket.tokens - used);
  parts_.metrics->record(request_metrics(ticket.placement, result));
  if (!ticket.placement.experiment.empty()) ended_in_experiment(ticket, result);
  const bool is_whole =
      result.reason == FinishReason::kStop || result.reason == FinishReason::kLength;
  if (ticket.request != nullptr && is_whole)
    parts_.on_ended(ticket.placement, *ticket.request, answer, result);
}

template <class Visit>
void LaneDispatcher::if_counted(const Placement& placement, Visit visit) {
  if (placement.assignment.forced || placement.assignment.burn_in) return;
  const std::shared_ptr<const Snapshot> snapshot = current();
  const ExperimentConfig* experiment = find_by_name(snapshot->experiments, placement.experiment);
  // A reload may have ended it, or begun another under its name.
  if (experiment != nullptr && placement.experiment_version == experiment->version)
    visit(*experiment);
}

void LaneDispatcher::begin(const GenerateRequest& request, Ticket& ticket) {
  ticket.row = arrival_row(ticket.placement, request);
  ticket.deadline = steady_time() + (request.deadline - absl::Now());
  ticket.log_ticket = parts_.log->begin(ticket.row);
  if_counted(ticket.placement, [&](const ExperimentConfig& experiment) {
    // What is late elsewhere must not wait for its end to be seen.
    stop_breaches(experiment);
    arms_.began(experiment, ticket.placement.assignment.arm, ticket.row.unit_hash, ticket.deadline);
  });
}

void LaneDispatcher::refused(const Ticket& ticket) {
  parts_.log->forget(ticket.log_ticket);
  if_counted(ticket.placement, [&](const ExperimentConfig& experiment) {
    arms_.refused(experiment, ticket.placement.assignment.arm, ticket.row.unit_hash,
                  ticket.deadline);
  });
}

void LaneDispatcher::ended_in_experiment(const Ticket& ticket, const GenerateResult& result) {
  const Exposure row = ended_row(ticket.row, result);
  // Who never left the queue has seen nothing of the arm's stack.
  if (result.started != absl::InfinitePast()) {
    parts_.log->end(ticket.log_ticket, row);
  } else {
    parts_.log->forget(ticket.log_ticket);
  }
  // What a server that stops cuts off is nobody's fault.
  const bool is_error =
      result.reason == FinishReason::kError && !absl::IsUnavailable(result.status);
  if_counted(ticket.placement, [&](const ExperimentConfig& experiment) {
    arms_.ended(experiment, ticket.placement.assignment.arm, row.unit_hash, ticket.deadline,
                is_error, row.ttft_ms);
    stop_breaches(experiment);
  });
}

void LaneDispatcher::add_quality(const QualitySample& sample) {
  const std::shared_ptr<const Snapshot> snapshot = current();
  if (parts_.log != nullptr) parts_.log->add(sample);
  const ExperimentConfig* experiment = find_by_name(snapshot->experiments, sample.experiment);
  if (experiment == nullptr || experiment->version != sample.version) return;
  const std::optional<size_t> arm = arm_with_name(*experiment, sample.arm);
  if (!arm.has_value()) return;
  const std::string breach = arms_.compared(*experiment, *arm, sample);
  if (!breach.empty()) (void)stop_arm(sample.experiment, sample.arm, breach);
}

absl::Status LaneDispatcher::stop_arm(const std::string& experiment, const std::string& arm,
                                      const std::string& why) {
  ExperimentConfig changed;
  {
    MutexLock lock(&mutex_);
    const ExperimentConfig* found = find_by_name(snapshot_->experiments, experiment);
    if (found == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("found the experiment ", quoted(experiment), "; expected one in effect"));
    }
    const std::optional<size_t> number = arm_with_name(*found, arm);
    if (!number.has_value()) {
      return absl::NotFoundError(
          absl::StrCat("found the arm ", quoted(arm), "; expected one of ", arms_text(*found)));
    }
    if (*number == 0) {
      return absl::InvalidArgumentError(absl::StrCat("found the control ", quoted(arm),
                                                     ", which stands in for stopped arms; "
                                                     "expected another one of ",
                                                     arms_text(*found)));
    }
    auto next = std::make_shared<Snapshot>(*snapshot_);
    if (!next->stops[experiment].emplace(arm, why).second) return absl::OkStatus();
    next->experiments = with_stops(next->config->experiments, next->stops);
    changed = *find_by_name(next->experiments, experiment);
    snapshot_ = std::move(next);
  }
  parts_.metrics->stopped(experiment, arm);
  if (parts_.lines) {
    parts_.lines(LogLevel::kWarning, "host",
                 absl::StrCat("experiment ", experiment, ": arm ", arm, " stopped: ", why));
  }
  if (parts_.log != nullptr) parts_.log->add(stop_event(changed, arm, why, wall_seconds()));
  return absl::OkStatus();
}

std::vector<ExperimentStatus> LaneDispatcher::experiments() const {
  const std::shared_ptr<const Snapshot> snapshot = current();
  const auto open = parts_.log ? parts_.log->open_requests() : std::vector<Exposure>();
  std::vector<ExperimentStatus> all;
  for (const ExperimentConfig& experiment : snapshot->experiments) {
    all.push_back(arms_.status(experiment));
    add_open(open, all.back());
    const auto stops = snapshot->stops.find(experiment.name);
    if (stops == snapshot->stops.end()) continue;
    for (ArmStatus& arm : all.back().arms) {
      const auto why = stops->second.find(arm.arm);
      if (why != stops->second.end()) arm.stopped = why->second;
    }
  }
  return all;
}

std::shared_ptr<Lane> LaneDispatcher::main_lane() const {
  const std::shared_ptr<const Snapshot> now = current();
  const ServeConfig& config = *now->config;
  return now->lanes.at(find_by_name(config.classes, config.server.default_class)->stack).lane;
}

std::vector<LaneInfo> LaneDispatcher::lanes() const {
  const std::shared_ptr<const Snapshot> now = current();
  std::vector<LaneInfo> all = generations_->alive();
  for (LaneInfo& info : all) {
    const auto found = now->lanes.find(info.stack);
    info.is_current = found != now->lanes.end() && found->second.generation == info.generation;
  }
  return all;
}

ServeConfig LaneDispatcher::config() const {
  const std::shared_ptr<const Snapshot> snapshot = current();
  ServeConfig config = *snapshot->config;
  config.experiments = snapshot->experiments;
  return config;
}

absl::StatusOr<std::vector<std::string>> LaneDispatcher::reload(const ServeConfig& config) {
  // No lock, since plugins are called meanwhile.
  if (is_reloading_.exchange(true)) {
    return absl::FailedPreconditionError(
        "found a reload under way; expected to be asked again when it has ended");
  }
  const absl::Cleanup ended = [this] { is_reloading_ = false; };
  return reload_alone(config);
}

absl::StatusOr<std::vector<std::string>> LaneDispatcher::reload_alone(const ServeConfig& config) {
  const std::shared_ptr<const Snapshot> now = current();
  absl::Status status = check_config(config, possible_lanes(now->lanes, config, parts_.loader),
                                     parts_.log != nullptr);
  if (!status.ok()) return status;
  absl::StatusOr<std::vector<std::string>> changes =
      config_changes(*now->config, config, parts_.loader.start != nullptr);
  if (!changes.ok()) return changes;
  absl::StatusOr<std::shared_ptr<const ApiKeys>> keys = load_keys(config);
  if (!keys.ok()) return keys.status();
  if (*keys != nullptr) changes->push_back("keys: read from " + config.server.keys_path);

  const uint32_t n_loaded = generations_->n_added() - n_at_start_;
  const uint32_t n_left = kGenerationsMax - std::min(kGenerationsMax, n_loaded);
  absl::StatusOr<SnapshotLanes> lanes =
      next_lanes(*now, config, parts_.loader, n_left, generations_.get(), &*changes);
  if (!lanes.ok()) return lanes.status();

  auto next = std::make_shared<Snapshot>();
  next->lanes = *std::move(lanes);
  next->config = std::make_shared<const ServeConfig>(config);
  next->keys = *std::move(keys);
  std::shared_ptr<const Snapshot> old;
  {
    MutexLock lock(&mutex_);
    for (const auto& [name, arms] : snapshot_->stops) {
      const ExperimentConfig* before = find_by_name(snapshot_->experiments, name);
      const ExperimentConfig* after = find_by_name(config.experiments, name);
      if (after != nullptr && before != nullptr && after->version == before->version)
        next->stops[name] = arms;
    }
    next->experiments = with_stops(config.experiments, next->stops);
    old = std::exchange(snapshot_, next);
  }
  for (const StackConfig& stack : config.stacks) {
    const auto lane = next->lanes.find(stack.name);
    if (lane == next->lanes.end()) continue;
    lane->second.lane->reconfigure(lane_options(stack, config.classes, lane->second.digest));
  }
  arms_.keep(next->experiments);
  log_changes(*old, *next);
  return changes;
}

void LaneDispatcher::log_changes(const Snapshot& from, const Snapshot& to) {
  const auto detail = [](const ExperimentConfig& experiment) {
    return experiment_event(experiment, "", "", 0).detail;
  };
  for (const ExperimentConfig& experiment : to.experiments) {
    const ExperimentConfig* before = find_by_name(from.experiments, experiment.name);
    if (before == nullptr || before->version != experiment.version) {
      log_event(experiment, "started", "");
    } else if (weights_text(*before) != weights_text(experiment)) {
      log_event(experiment, "weights changed", weights_text(*before));
    } else if (detail(*before) != detail(experiment)) {
      log_event(experiment, "limits changed", "");
    }
  }
  for (const ExperimentConfig& experiment : from.experiments) {
    if (find_by_name(to.experiments, experiment.name) == nullptr)
      log_event(experiment, "ended", "");
  }
}

void LaneDispatcher::drain(absl::Time deadline) {
  std::vector<std::thread> threads;
  for (const LaneInfo& info : generations_->alive())
    threads.emplace_back([lane = info.lane, deadline] { lane->drain(deadline); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dispatcher>> Dispatcher::make(ServeConfig config,
                                                             DispatcherParts parts) {
  std::set<std::string> names;
  for (const auto& [name, lane] : parts.lanes) names.insert(name);
  absl::Status status = check_config(config, names, parts.log != nullptr);
  if (!status.ok()) return status;
  absl::StatusOr<std::shared_ptr<const ApiKeys>> keys = load_keys(config);
  if (!keys.ok()) return keys.status();
  auto generations = std::make_unique<Generations>();
  auto snapshot = std::make_shared<Snapshot>();
  if (!config.experiments.empty() && !config.server.experiment_log_path.empty()) {
    absl::StatusOr<Stops> stops =
        logged_stops(config.server.experiment_log_path, config.experiments);
    if (!stops.ok()) return stops.status();
    snapshot->stops = *std::move(stops);
  }
  snapshot->experiments = with_stops(config.experiments, snapshot->stops);
  snapshot->config = std::make_shared<const ServeConfig>(std::move(config));
  snapshot->keys = *std::move(keys);
  for (auto& [name, lane] : parts.lanes) {
    snapshot->lanes.emplace(name,
                            generations->add(name, std::move(lane), parts.stack_digests[name]));
  }
  parts.lanes.clear();
  return std::make_unique<LaneDispatcher>(std::move(snapshot), std::move(parts),
                                          std::move(generations));
}

void stay_with(const Placement& earlier, Placement* placement) {
  if (earlier.stack != placement->stack) return;
  placement->lane = earlier.lane;
  placement->digest = earlier.digest;
  placement->generation = earlier.generation;
}

absl::Status with_retry_after(absl::Status status, absl::Duration wait) {
  const int64_t ms = absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1)));
  status.SetPayload(kRetryAfterPayload, absl::Cord(absl::StrCat(ms)));
  return status;
}

absl::Duration retry_after(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kRetryAfterPayload);
  int64_t ms = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &ms))
    return absl::Seconds(1);
  return absl::Milliseconds(ms);
}

}  // namespace varve
