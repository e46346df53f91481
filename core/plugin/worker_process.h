// One worker process from its start to its end: memory, calls, log lines, death.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "core/plugin/worker_calls.h"
#include "core/plugin/worker_memory.h"

namespace varve {

enum class WorkerAnswer { kDone, kDead, kLate };

// Methods may be called from any thread, except where said.
class WorkerProcess {
 public:
  // Starts `program`. The worker dies with the calling thread, so that must be one that lives at
  // least as long. It inherits no descriptor but its memory and the pipe for its words, and no
  // environment. memory_mb 0: no limit of its address space.
  static absl::StatusOr<std::shared_ptr<WorkerProcess>> start(const std::string& program,
                                                              uint64_t memory_mb);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  pid_t pid() const { return pid_; }
  int pid_fd() const { return pid_fd_; }  // readable once the process has ended
  int log_fd() const { return log_fd_; }  // what it writes to stderr; does not block

  // One slot for one call; waits for a free one. Empty when the process died meanwhile.
  class Lease {
   public:
    explicit Lease(WorkerProcess& process);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    explicit operator bool() const { return index_ >= 0; }
    WorkerSlot& slot() const { return process_.memory_.slot(static_cast<uint32_t>(index_)); }
    // Hands over what the slot holds and waits for the answer. Time counts in parts, so that a
    // machine that stood still (suspended, stopped) is not taken for a worker that does.
    WorkerAnswer transact(WorkerCall call, uint64_t ms_max);

   private:
    WorkerAnswer ask(WorkerCall call, uint64_t ms_max, bool looks_first);

    WorkerProcess& process_;
    int index_;
  };

  // A packed message in, a packed message out. `err` and *status take the plugin's; both may be
  // null. Errors are the worker's: death, lateness, nonsense.
  absl::StatusOr<std::string> exchange(WorkerCall call, std::string_view message, uint64_t ms_max,
                                       mri_status* status = nullptr, mri_error* err = nullptr);

  // Ends the process and all that it has started; it is dead soon after.
  void kill();
  // After its end: who waits for an answer hears of it at once. Returns how it ended, as "signal 9
  // (Killed)". Called once, by the starting thread.
  std::string bury();

 private:
  WorkerProcess(WorkerMemory memory, pid_t pid, int pid_fd, int log_fd);
  bool has_ended() const;
  // Moves the slot's thread of the worker to these cores.
  void place(int index, const cpu_set_t& cores);

  WorkerMemory memory_;
  const pid_t pid_;
  const int pid_fd_, log_fd_;
  std::atomic<bool> is_alive_{true};
  Mutex mutex_;
  std::condition_variable_any freed_;
  std::vector<int> free_slots_ ABSL_GUARDED_BY(mutex_);
  bool is_buried_ ABSL_GUARDED_BY(mutex_) = false;
  // Of each slot; who leases the slot owns it.
  struct Track {
    uint32_t requests = 0;  // last number
    std::chrono::steady_clock::time_point answered_at{};
    cpu_set_t cores;  // where the worker's thread may run
  };
  Track tracks_[kWorkerSlots];
  cpu_set_t cores_;  // where the worker was started
};

}  // namespace varve
