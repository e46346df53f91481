// From a request with an identity to a lane: class, quota, experiment arm, stack; and, at its end,
// to metrics and the exposure log.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/config/serve_config.h"
#include "core/engine/lane.h"
#include "core/metrics/metrics.h"
#include "core/route/api_keys.h"
#include "core/route/experiment.h"
#include "core/route/exposure_log.h"
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
  Lane* lane = nullptr;  // valid as long as the dispatcher
};

struct DispatcherParts {
  std::map<std::string, std::unique_ptr<Lane>> lanes;  // by stack name
  std::unique_ptr<ExposureLog> log;                    // null: no experiments
  Metrics* metrics = nullptr;                          // outlives the dispatcher
};

// Thread-safe.
class Dispatcher {
 public:
  static absl::StatusOr<std::unique_ptr<Dispatcher>> make(ServeConfig config,
                                                          DispatcherParts parts);
  virtual ~Dispatcher() = default;

  // kPermissionDenied: a tier or arm the key may not choose; kNotFound: no such arm.
  virtual absl::StatusOr<Placement> place(const Arrival& arrival) const = 0;
  // Checks limits and quota, hands the request to the placement's lane, and records its end. The
  // request's tenant, class, arm, priority and deadline are filled in here. kResourceExhausted
  // carries the wait: retry_after(status).
  virtual absl::Status submit(const Arrival& arrival, const Placement& placement,
                              GenerateRequest request, std::shared_ptr<GenerateSink> sink,
                              CancelFlag cancel) = 0;

  virtual absl::StatusOr<Identity> authenticate(std::string_view key) const = 0;
  // Lanes by stack name; fixed for life.
  virtual const std::map<std::string, std::unique_ptr<Lane>>& lanes() const = 0;
  // Lane of the default class: its text and model answer /tokenize and /v1/models.
  virtual Lane& main_lane() const = 0;
  // Keys, classes, weights, limits. All or nothing: on error the old stay, and the error says why.
  // Returns what changed, a line each.
  virtual absl::StatusOr<std::vector<std::string>> reload(const ServeConfig& config) = 0;
  // Sets an arm's weight to 0 at once and logs why.
  virtual absl::Status stop_arm(const std::string& experiment, const std::string& arm,
                                const std::string& why) = 0;
  virtual ServeConfig config() const = 0;
  virtual void drain(absl::Time deadline) = 0;
};

// The wait that a kResourceExhausted status carries (payload "varve/retry_after_ms").
absl::Status with_retry_after(absl::Status status, absl::Duration wait);
absl::Duration retry_after(const absl::Status& status);  // 1 s when there is none

}  // namespace varve
