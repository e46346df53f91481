// A plugin in a process of its own (isolation = "worker"): the program mri-worker loads the
// library, and this stands in for it. Whatever the plugin does there (crash, hang, leak, scribble
// over its memory), a call ends with its answer, with the fallback's, or with MRI_E_INTERNAL and a
// text.
//
// The process is started again after a failure, with a pause that doubles; kWorkerFailuresMax
// failures within kWorkerWindowMs put the plugin into quarantine for good. While there is no worker
// a call goes to the fallback, or else waits for the restart as long as its deadline allows.
//
// Not protected from: a plugin that means harm. The worker runs with the host's user and may open
// files and sockets.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "core/plugin/isolation.h"
#include "core/plugin/trust.h"
#include "core/plugin/worker_messages.h"
#include "core/plugin/worker_process.h"
#include "mri/entry.h"

namespace varve {

struct WorkerSpec {
  LoadMessage load;
  Isolation isolation;
  Trust trust;
  LogSink log;
};

struct WorkerStatus {
  pid_t pid = 0;  // 0: none now
  bool is_quarantined = false;
  uint64_t failures = 0;  // deaths and late answers
  uint64_t restarts = 0;
  uint64_t fallback_calls = 0;
  uint64_t calls = 0;  // answered by the worker
  uint64_t call_ns = 0;
};

// Methods may be called from any thread, except for those of mri_plugin, which have their tags.
class WorkerPlugin {
 public:
  // Reads and checks the library's file, starts the process and loads the same bytes in it: a
  // process that finds others, also after a restart, refuses them (MRI-E022).
  static absl::StatusOr<std::unique_ptr<WorkerPlugin>> start(WorkerSpec spec);
  ~WorkerPlugin();
  WorkerPlugin(const WorkerPlugin&) = delete;
  WorkerPlugin& operator=(const WorkerPlugin&) = delete;

  const PluginInfo& info() const { return info_; }
  // What mri_plugin_entry::open does; the object's functions reach the worker.
  mri_status open(mri_plugin** out, mri_error* err);
  // Answers when the worker cannot; a table of the plugin's kind.
  void set_fallback(const void* table, void* self);

  // A call of the plugin's kind. `body_bytes` of quantizers only. Throws what the plugin threw.
  mri_status call(const CallRule& rule, const void* req, void* rsp, uint64_t body_bytes,
                  mri_error* err);
  // Of a quantizer's page; asked once per head size.
  mri_status body_bytes(uint32_t head_dim, uint64_t* bytes, mri_error* err);

  WorkerStatus status() const;
  // The plugin's own, as last heard, and the worker's.
  WorkerNumbers numbers();

 private:
  enum class State { kStarting, kRunning, kDown, kQuarantined, kStopped };
  using Process = std::shared_ptr<WorkerProcess>;

  explicit WorkerPlugin(WorkerSpec spec);

  // The life of processes, in a thread of its own: the worker dies with the thread that starts it.
  void supervise();
  absl::StatusOr<Process> begin();
  absl::Status load(WorkerProcess& process);
  absl::Status reopen(WorkerProcess& process);
  void watch(WorkerProcess& process);
  void end(WorkerProcess& process, std::string_view why);
  bool pause_before_restart();
  void take_log_lines(WorkerProcess& process);
  void log_line(std::string_view line);
  void set_state(State state, Process process);
  void say(LogLevel level, std::string_view text) const;

  Process running(uint64_t ms_max);
  void forget(WorkerProcess& process);
  mri_status answer(WorkerProcess& process, const CallRule& rule, const CallArgs& args, void* rsp,
                    mri_error* err, bool* is_answered);
  mri_status no_answer(mri_error* err) const;
  // One step of the plugin's life; an answer that does not come is MRI_E_INTERNAL.
  mri_status live(WorkerCall call, std::string_view message, uint64_t ms_max, std::string* reply,
                  mri_error* err);

  // mri_plugin's functions; self is a WorkerPlugin.
  static const void* get_interface(void* self, const char* id);
  static mri_status query_caps(void* self, mri_caps* out, mri_error* err);
  static mri_status activate(void* self, const mri_param* params, uint64_t n_params,
                             mri_error* err);
  static mri_status drain(void* self, uint64_t deadline_ns, mri_error* err);
  static void close(void* self);

  const WorkerSpec spec_;
  PluginInfo info_;
  std::string library_;  // as first described; a restart must find the same
  mri_plugin abi_;
  const void* fallback_table_ = nullptr;
  void* fallback_self_ = nullptr;
  int wake_fd_ = -1;
  // The supervisor's: a line that has not ended, and how many there were in this second.
  std::string log_rest_;
  std::chrono::seconds log_second_{};
  uint32_t log_lines_ = 0;

  mutable Mutex mutex_;
  std::condition_variable_any changed_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kStarting;
  Process process_ ABSL_GUARDED_BY(mutex_);
  absl::Status start_status_ ABSL_GUARDED_BY(mutex_);
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_active_ ABSL_GUARDED_BY(mutex_) = false;  // from then on it is started again
  std::string params_ ABSL_GUARDED_BY(mutex_);
  std::string last_end_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::chrono::steady_clock::time_point> failed_at_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, uint64_t> body_bytes_ ABSL_GUARDED_BY(mutex_);
  WorkerNumbers numbers_ ABSL_GUARDED_BY(mutex_);

  std::atomic<uint64_t> failures_{0}, restarts_{0}, fallback_calls_{0}, calls_{0}, call_ns_{0};
  std::thread supervisor_;
};

// The table of `kind` whose self is a WorkerPlugin; nullptr for kinds that cannot be isolated.
const void* worker_table(std::string_view kind);

// "mri-worker" seen from this program's folder.
std::string default_worker_program();

}  // namespace varve
