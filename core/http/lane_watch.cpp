#include "core/http/lane_watch.h"

namespace varve::http {

LaneWatch::Clock::duration LaneWatch::stalled_for(const std::string& name, const LaneStatus& status,
                                                  Clock::time_point now) {
  MutexLock lock(&mutex_);
  const auto [at, is_new] = looks_.try_emplace(name);
  Look& look = at->second;
  const bool running = status.running > 0;
  const bool waits = !is_new && running && look.running && look.progress == status.progress;
  look.running = running;
  look.progress = status.progress;
  if (!waits) look.since = now;
  return now - look.since;
}

}  // namespace varve::http
