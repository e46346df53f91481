// Start, death and restart of workers.
#include "core/plugin/worker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "core/base/text.h"
#include "core/plugin/library_file.h"

namespace varve {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

std::string default_worker_program() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return (program.parent_path() / "mri-worker").string();
}

absl::StatusOr<std::unique_ptr<WorkerPlugin>> WorkerPlugin::start(WorkerSpec spec) {
  absl::StatusOr<LibraryFile> file = read_library(spec.load.path, spec.trust);
  if (!file.ok()) return file.status();
  spec.load.sha256 = std::move(file->sha256);
  std::unique_ptr<WorkerPlugin> plugin(new WorkerPlugin(std::move(spec)));
  plugin->wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (plugin->wake_fd_ < 0) return absl::ResourceExhaustedError("no descriptor for a worker");
  plugin->supervisor_ = std::thread([self = plugin.get()] { self->supervise(); });
  const MutexLock lock(&plugin->mutex_);
  while (plugin->state_ == State::kStarting) plugin->changed_.wait(plugin->mutex_);
  if (!plugin->start_status_.ok()) {
    const absl::Status status = plugin->start_status_;
    return status;
  }
  return plugin;
}

WorkerPlugin::WorkerPlugin(WorkerSpec spec)
    : spec_(std::move(spec)), abi_{sizeof(mri_plugin), 0,         this,   &get_interface,
                                   &query_caps,        &activate, &drain, &WorkerPlugin::close} {}

WorkerPlugin::~WorkerPlugin() {
  {
    const MutexLock lock(&mutex_);
    is_stopping_ = true;
  }
  if (supervisor_.joinable()) {
    eventfd_write(wake_fd_, 1);
    supervisor_.join();
  }
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

void WorkerPlugin::say(LogLevel level, std::string_view text) const {
  if (spec_.log) spec_.log(level, spec_.load.who, text);
}

void WorkerPlugin::set_state(State state, Process process) {
  {
    const MutexLock lock(&mutex_);
    state_ = state;
    process_ = std::move(process);
  }
  changed_.notify_all();
}

void WorkerPlugin::set_fallback(const void* table, void* self) {
  fallback_table_ = table;
  fallback_self_ = self;
}

void WorkerPlugin::supervise() {
  for (bool is_first = true;; is_first = false) {
    const absl::StatusOr<Process> process = begin();
    if (is_first && !process.ok()) {
      {
        const MutexLock lock(&mutex_);
        start_status_ = process.status();
      }
      return set_state(State::kStopped, nullptr);
    }
    if (process.ok()) watch(**process);
    if (!pause_before_restart()) return;
  }
}

// A process with the library loaded, and opened and activated if the first one was.
absl::StatusOr<WorkerPlugin::Process> WorkerPlugin::begin() {
  const std::string& named = spec_.isolation.program;
  absl::StatusOr<Process> process = WorkerProcess::start(
      named.empty() ? default_worker_program() : named, spec_.isolation.memory_mb);
  if (!process.ok()) return process.status();
  absl::Status status = load(**process);
  if (status.ok()) status = reopen(**process);
  take_log_lines(**process);
  if (status.ok()) {
    set_state(State::kRunning, *process);
    return process;
  }
  (*process)->kill();
  const std::string how = (*process)->bury();
  take_log_lines(**process);
  if (absl::IsUnavailable(status)) {
    status = absl::FailedPreconditionError(absl::StrCat(
        "MRI-E019 ", spec_.load.path, ": its process ended while it was loaded: ", how));
  }
  end(**process, status.message().empty() ? how : std::string(status.message()));
  return status;
}

absl::Status WorkerPlugin::load(WorkerProcess& process) {
  absl::StatusOr<std::string> reply =
      process.exchange(WorkerCall::kLoad, packed_load(spec_.load), kWorkerStartMs);
  if (!reply.ok()) return reply.status();
  if (*reply == library_) return absl::OkStatus();
  absl::StatusOr<PluginInfo> info =
      unpacked_library(*reply, spec_.load.path, spec_.load.kind, spec_.load.host_versions);
  if (!info.ok()) return info.status();
  if (library_.empty()) {
    info_ = *std::move(info);
    info_.sha256 = spec_.load.sha256;
    library_ = *std::move(reply);
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError("the library has changed since it was first loaded");
}

absl::Status WorkerPlugin::reopen(WorkerProcess& process) {
  std::string params;
  {
    const MutexLock lock(&mutex_);
    if (!is_active_) return absl::OkStatus();
    params = params_;
  }
  const std::pair<WorkerCall, std::string> steps[] = {
      {WorkerCall::kOpen, ""}, {WorkerCall::kGetInterface, ""}, {WorkerCall::kActivate, params}};
  for (const auto& [call, message] : steps) {
    mri_status status = MRI_OK;
    mri_error err{};
    const absl::StatusOr<std::string> reply =
        process.exchange(call, message, kWorkerStartMs, &status, &err);
    if (!reply.ok()) return reply.status();
    if (status == MRI_OK) continue;
    err.msg[sizeof(err.msg) - 1] = '\0';
    return absl::FailedPreconditionError(
        absl::StrCat("it does not start again: ", clean_text(err.msg, sizeof(err.msg))));
  }
  return absl::OkStatus();
}

// Returns when the process has ended, or when it was ended because the plugin is no longer wanted.
void WorkerPlugin::watch(WorkerProcess& process) {
  pollfd fds[] = {
      {process.pid_fd(), POLLIN, 0}, {wake_fd_, POLLIN, 0}, {process.log_fd(), POLLIN, 0}};
  for (;;) {
    if (poll(fds, 3, -1) < 0 && errno != EINTR) break;
    if (fds[0].revents != 0 || fds[1].revents != 0) break;
    if ((fds[2].revents & POLLIN) != 0) {
      take_log_lines(process);
    } else if (fds[2].revents != 0) {
      fds[2].fd = -1;  // it has closed its end
    }
  }
  process.kill();
  // From here on nobody finds it, and those who wait for it are told.
  set_state(State::kDown, nullptr);
  const std::string how = process.bury();
  take_log_lines(process);
  end(process, how);
}

// Keeps account of an unwanted end.
void WorkerPlugin::end(WorkerProcess& process, std::string_view why) {
  const MutexLock lock(&mutex_);
  if (is_stopping_) return;
  last_end_ = absl::StrCat("its process ", process.pid(), " ended: ", std::string(why));
  failed_at_.push_back(Clock::now());
  failures_.fetch_add(1, std::memory_order_relaxed);
}

// False: there will be no other process.
bool WorkerPlugin::pause_before_restart() {
  uint64_t n = 0;
  std::string last_end;
  bool is_lost = false;
  {
    const MutexLock lock(&mutex_);
    if (is_stopping_) return false;
    const auto window = std::chrono::milliseconds(kWorkerWindowMs);
    while (!failed_at_.empty() && Clock::now() - failed_at_.front() > window)
      failed_at_.pop_front();
    n = failed_at_.size();
    last_end = last_end_;
    is_lost = !is_active_ || n >= spec_.isolation.failures_max;
  }
  if (is_lost) {
    say(LogLevel::kError,
        absl::StrCat(last_end, "; in quarantine after ", n, " failures: ",
                     spec_.isolation.fallback.empty()
                         ? "calls fail until the server is started again"
                         : absl::StrCat("the fallback ", spec_.isolation.fallback, " answers")));
    set_state(State::kQuarantined, nullptr);
    return false;
  }
  say(LogLevel::kWarning,
      absl::StrCat(last_end, "; started again (failure ", n, " of ", spec_.isolation.failures_max,
                   " in ", kWorkerWindowMs / 1000, " s)"));
  const uint64_t doubled = spec_.isolation.backoff_ms << std::min<uint64_t>(n - 1, 20);
  pollfd fd{wake_fd_, POLLIN, 0};
  if (poll(&fd, 1, static_cast<int>(std::min(doubled, kWorkerBackoffMsMax))) > 0) return false;
  restarts_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// What the process wrote, as lines; a bounded part, so that a flood holds up nothing else.
void WorkerPlugin::take_log_lines(WorkerProcess& process) {
  char bytes[4096];
  for (int i = 0; i < 16; ++i) {
    const ssize_t n = read(process.log_fd(), bytes, sizeof(bytes));
    if (n <= 0) break;
    log_rest_.append(bytes, static_cast<size_t>(n));
  }
  std::string_view rest = log_rest_;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), kLogLineBytesMax);
    if (end >= rest.size()) break;
    log_line(rest.substr(0, end));
    rest.remove_prefix(end + (rest[end] == '\n' ? 1 : 0));
  }
  log_rest_.erase(0, log_rest_.size() - rest.size());
}

// A line of the plugin's log begins with a byte 1 + LogLevel; any other was just printed.
void WorkerPlugin::log_line(std::string_view line) {
  const auto second =
      std::chrono::duration_cast<std::chrono::seconds>(Clock::now().time_since_epoch());
  if (std::exchange(log_second_, second) != second) log_lines_ = 0;
  if (++log_lines_ > kLogLinesPerSecondMax) return;
  LogLevel level = LogLevel::kWarning;
  if (!line.empty() && line[0] >= 1 && line[0] <= 4) {
    level = static_cast<LogLevel>(line[0] - 1);
    line.remove_prefix(1);
  }
  say(level, clean_text(line, kLogLineBytesMax));
}

WorkerStatus WorkerPlugin::status() const {
  WorkerStatus status;
  status.failures = failures_.load(std::memory_order_relaxed);
  status.restarts = restarts_.load(std::memory_order_relaxed);
  status.fallback_calls = fallback_calls_.load(std::memory_order_relaxed);
  status.calls = calls_.load(std::memory_order_relaxed);
  status.call_ns = call_ns_.load(std::memory_order_relaxed);
  const MutexLock lock(&mutex_);
  status.is_quarantined = state_ == State::kQuarantined;
  status.pid = process_ == nullptr ? 0 : process_->pid();
  return status;
}

WorkerNumbers WorkerPlugin::numbers() {
  if (const Process process = running(0)) {
    const absl::StatusOr<std::string> reply =
        process->exchange(WorkerCall::kMetrics, "", spec_.isolation.deadline_ms);
    if (reply.ok()) {
      absl::StatusOr<WorkerNumbers> numbers = unpacked_numbers(*reply);
      const MutexLock lock(&mutex_);
      if (numbers.ok()) numbers_ = *std::move(numbers);
    }
  }
  WorkerNumbers numbers;
  {
    const MutexLock lock(&mutex_);
    numbers = numbers_;
  }
  const WorkerStatus now = status();
  const auto add = [&](const char* name, const char* help, uint32_t kind, double value,
                       uint64_t count) {
    numbers.metrics.push_back({name, help, kind, value, count});
  };
  add("worker_call_seconds", "calls that the plugin's process answered", MRI_METRIC_HISTOGRAM,
      static_cast<double>(now.call_ns) * 1e-9, now.calls);
  add("worker_restarts", "starts of the plugin's process after the first", MRI_METRIC_COUNTER,
      static_cast<double>(now.restarts), now.restarts);
  add("worker_quarantined", "1: the plugin's process failed too often", MRI_METRIC_GAUGE,
      now.is_quarantined ? 1 : 0, 1);
  add("worker_fallback_calls", "calls that the fallback answered", MRI_METRIC_COUNTER,
      static_cast<double>(now.fallback_calls), now.fallback_calls);
  return numbers;
}

}  // namespace varve
