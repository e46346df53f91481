// Requests of an experiment's control, played again for its last arm where no client waits: how
// long they take there (shadow), and what the arm's memory does to the text (teacher-forced, beside
// the exact stack).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/engine/request.h"
#include "core/engine/turnstile.h"
#include "core/metrics/metrics.h"
#include "core/route/dispatcher.h"
#include "core/route/exposure_log.h"

namespace varve {

struct ReplayParts {
  Dispatcher* dispatcher = nullptr;  // configuration, lanes, and where samples of quality go
  Turnstile* turnstile = nullptr;
  ExposureLog* log = nullptr;  // for shadow rows
  Metrics* metrics = nullptr;
};

// Thread-safe. One thread of low priority plays one request after the other; what comes faster is
// dropped. A request is kept when a hash of its id, keyed with the experiment's salt, falls under
// shadow_percent, so that every process keeps the same ones. Nothing runs while the lanes concerned
// have requests waiting, and an arm that was stopped gets none. Answers are discarded.
class Replay {
 public:
  static std::shared_ptr<Replay> make();
  virtual ~Replay() = default;  // stops

  // The function for DispatcherParts::on_ended. Never blocks; before start() and after stop() it
  // does nothing.
  virtual void offer(const Placement& placement, const GenerateRequest& request,
                     const std::vector<int32_t>& answer) = 0;
  // Once. All parts outlive stop().
  virtual void start(ReplayParts parts) = 0;
  // Cancels what is being played, forgets the rest, returns when the thread has ended.
  virtual void stop() = 0;
  // Waits until nothing is queued or being played. For tests.
  virtual void wait() = 0;

  struct Counts {
    uint64_t offered = 0;            // requests
    uint64_t kept = 0, dropped = 0;  // of those in the sample: queued, or no room
    uint64_t busy = 0;               // not played, since lanes had others to serve
    uint64_t shadowed = 0, compared = 0, failed = 0;
  };
  virtual Counts counts() const = 0;
};

}  // namespace varve
