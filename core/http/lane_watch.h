// Whether lanes get on. Measured here, on the monotonic clock, between two looks: a jump of the
// wall clock makes no lane look stalled.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "core/base/mutex.h"
#include "core/engine/lane.h"

namespace varve::http {

// A lane that runs requests and computes no token for so long is stalled.
inline constexpr std::chrono::seconds kStallMax{60};

// Thread-safe.
class LaneWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // How long the lane has run requests without computing a token, as far as looks tell: counted
  // from the first look that found it so. Zero when it is idle or has got on since the last look.
  Clock::duration stalled_for(const std::string& name, const LaneStatus& status,
                              Clock::time_point now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Look {
    bool running = false;
    uint64_t progress = 0;
    Clock::time_point since;
  };

  Mutex mutex_;
  std::map<std::string, Look> looks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace varve::http
