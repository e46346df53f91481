// From a request with an identity to a lane: class, quota, experiment arm, stack; and, at its end,
// to metrics and the exposure log.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/config/serve_config.h"
#include "core/engine/lane.h"
#include "core/metrics/metrics.h"
#include "core/route/api_keys.h"
#include "core/route/experiment.h"
#include "core/route/exposure_log.h"
#include "core/route/generations.h"
#include "core/route/identity.h"

namespace varve {

// What the HTTP layer knows beyond the tokens.
struct Arrival {
  Identity who;
  std::string service_tier;  // "" or "auto": the key's own class
  std::string conversation;  // client's id of it; empty: derived from the first messages
  std::string forced_arm;    // admin keys only
};

struct Placement {
  std::string class_name, stack, experiment, arm;
  Assignment assignment;
  uint32_t priority = 0;
  uint64_t max_prompt_tokens = 0, max_answer_tokens = 0;
  absl::Time deadline;
  std::shared_ptr<Lane> lane;  // kept open by this; must end before the dispatcher does
  std::string digest;          // of the lane's model and stack
  uint32_t generation = 1;
  uint32_t experiment_version = 0;
};

// Where `earlier` went, when `placement` goes to the same stack: who has memory in a generation
// stays there.
void stay_with(const Placement& earlier, Placement* placement);

struct StartedLane {
  std::unique_ptr<Lane> lane;
  std::string digest;
};

// What a reload makes another generation of a stack with. Called by whoever calls reload().
struct StackLoader {
  // Of model and stack, as a profile and the files that it names say now; starts nothing.
  std::function<absl::StatusOr<std::string>(const StackConfig&)> digest;
  std::function<absl::StatusOr<StartedLane>(const ServeConfig&, const StackConfig&)> start;
};

struct DispatcherParts {
  std::map<std::string, std::unique_ptr<Lane>> lanes;  // by stack name
  std::unique_ptr<ExposureLog> log;                    // null: no experiments
  Metrics* metrics = nullptr;                          // outlives the dispatcher
  std::map<std::string, std::string> stack_digests;    // by stack name, for the exposure log
  StackLoader loader;                                  // empty: a reload cannot change stacks
  LogSink lines;                                       // of stopped arms; may be empty
  // Told of each request on the control arm of an experiment with shadow_percent that ended well
  // (stop or length), unless it was forced there. Called by the lane's thread: must not block.
  std::function<void(const Placement&, const GenerateRequest& request,
                     const std::vector<int32_t>& answer, const GenerateResult&)>
      on_ended;
};

// Since this process started, without forced and burn-in requests.
struct ArmStatus {
  std::string arm;  // arm_name()
  double weight = 0;
  // Ended; and those still under way that are late, which count as errors.
  uint64_t requests = 0, errors = 0;
  uint64_t open = 0, unanswered = 0;  // under way; and of these without a first token
  double unanswered_ms_max = 0;       // how long the oldest of these has waited; 0: none does
  uint64_t quality_samples = 0;
  double ttft_ms_mean = 0, kld_mean = 0, top1_mean = 0;  // NaN while there is none
  std::string stopped;                                   // why, or empty
};

struct ExperimentStatus {
  std::string name, class_name, mode;
  uint32_t version = 1;
  std::vector<ArmStatus> arms;
};

// Thread-safe.
class Dispatcher {
 public:
  // Arms that the log at server.experiment_log_path tells as stopped, in the same version, are so
  // from the start.
  static absl::StatusOr<std::unique_ptr<Dispatcher>> make(ServeConfig config,
                                                          DispatcherParts parts);
  virtual ~Dispatcher() = default;

  // kPermissionDenied: a tier or arm the key may not choose; kNotFound: no such arm.
  virtual absl::StatusOr<Placement> place(const Arrival& arrival) const = 0;
  // Checks limits and quota (each choice counts as a request), hands the request to the placement's
  // lane, and records its end. The request's tenant, class, arm, priority and deadline are filled
  // in here. kResourceExhausted carries the wait: retry_after(status).
  virtual absl::Status submit(const Arrival& arrival, const Placement& placement,
                              GenerateRequest request, std::shared_ptr<GenerateSink> sink,
                              CancelFlag cancel) = 0;

  // Counts a request of so many tokens against the key's quota, without running anything: for what
  // does not go through submit(). kResourceExhausted as there.
  virtual absl::Status charge(const Arrival& arrival, const Placement& placement,
                              uint64_t tokens) = 0;

  virtual absl::StatusOr<Identity> authenticate(std::string_view key) const = 0;
  // By stack name, the one in effect after those that somebody still uses. They must be let go of
  // before the dispatcher ends.
  virtual std::vector<LaneInfo> lanes() const = 0;
  // Lane of the default class: its text and model answer /tokenize and /v1/models.
  virtual std::shared_ptr<Lane> main_lane() const = 0;
  // Keys, classes, weights, limits, stacks. All or nothing: on error the old stay, and the error
  // says why: kFailedPrecondition for what needs a restart (address) or a new version of an
  // experiment (arms, salt, class, mode, another stack in an arm), and while another reload is
  // under way. Stopped arms stay stopped until the version changes. A stack whose digest is not
  // what it was is loaded again while the old one serves; from then on new requests go to the new
  // one, and the old one is closed when its last user has ended. Returns what changed, a line each.
  virtual absl::StatusOr<std::vector<std::string>> reload(const ServeConfig& config) = 0;
  // Sets an arm's weight to 0 at once, in favour of the control, and logs why. kNotFound;
  // kInvalidArgument for the control.
  virtual absl::Status stop_arm(const std::string& experiment, const std::string& arm,
                                const std::string& why) = 0;
  // Logs the sample and stops its arm when the mean breaches kld_max or top1_min. [any]
  virtual void add_quality(const QualitySample& sample) = 0;
  virtual std::vector<ExperimentStatus> experiments() const = 0;
  // In effect: a stopped arm's weight is the control's.
  virtual ServeConfig config() const = 0;
  // config().server, without a copy of the rest.
  virtual ServerConfig server_config() const { return config().server; }
  // All lanes at once; see Lane::drain().
  virtual void drain(absl::Time deadline) = 0;
};

// What a lane is started or reconfigured with.
LaneOptions lane_options(const StackConfig& stack, const std::vector<ClassConfig>& classes,
                         std::string digest);

// The wait that a kResourceExhausted status carries (payload "varve/retry_after_ms").
absl::Status with_retry_after(absl::Status status, absl::Duration wait);
absl::Duration retry_after(const absl::Status& status);  // 1 s when there is none

}  // namespace varve
