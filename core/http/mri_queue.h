// Runs calls of the MRI routes beside the lanes: one at a time per context, urgent ones first.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "core/base/mutex.h"

namespace varve::http {

struct MriCall {
  std::string tenant;
  uint32_t priority = 0;           // larger runs first
  std::vector<uint64_t> contexts;  // none of them is in two calls at a time; in order of arrival
  // What it returns is called once the call counts no more: to answer, so that a client that has
  // its answer may send the next call.
  std::function<std::function<void()>()> run;
};

// Thread-safe.
class MriQueue {
 public:
  // `tick` runs in a worker about every `tick_interval`.
  MriQueue(size_t n_threads, size_t per_tenant_max, std::chrono::milliseconds tick_interval,
           std::function<void()> tick);
  // Runs what is queued, then stops.
  ~MriQueue();
  // kResourceExhausted when the tenant has per_tenant_max calls waiting or running.
  absl::Status add(MriCall call);

 private:
  using Clock = std::chrono::steady_clock;

  void work();
  std::list<MriCall>::iterator next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t per_tenant_max_;
  const std::chrono::milliseconds tick_interval_;
  const std::function<void()> tick_;
  Mutex mutex_;
  std::condition_variable_any changed_;
  std::list<MriCall> waiting_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> busy_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, size_t> n_by_tenant_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point next_tick_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace varve::http
