#include "core/plugin/worker_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace varve {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMemoryFd = 3;  // in the worker
constexpr uint64_t kPartNsMax = 50'000'000;

absl::Status start_error(const std::string& program, int error) {
  return absl::FailedPreconditionError(absl::StrCat(
      "MRI-E019 ", program, ": cannot be started as the plugin's process: ", std::strerror(error),
      ". It is installed beside varve; plugins.worker_path names another."));
}

// Descriptors 0 to 3 as the worker wants them, everything else closed.
int spawn(const std::string& program, uint64_t memory_mb, int memory_fd, int log_fd, pid_t* pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, log_fd, 2);
  posix_spawn_file_actions_adddup2(&actions, memory_fd, kMemoryFd);
  posix_spawn_file_actions_addclosefrom_np(&actions, kMemoryFd + 1);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  // A group of its own: the terminal's Ctrl-C is the host's to handle, and what a plugin has
  // started can be ended with it.
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::string arguments[] = {program, "--serve", std::to_string(kMemoryFd),
                             std::to_string(getpid()), std::to_string(memory_mb)};
  char* argv[std::size(arguments) + 1] = {};
  for (size_t i = 0; i < std::size(arguments); ++i) argv[i] = arguments[i].data();
  char* environment[] = {nullptr};
  const int error = posix_spawn(pid, program.c_str(), &actions, &attributes, argv, environment);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

std::string how_it_ended(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    return absl::StrCat("signal ", signal, " (", sigdescr_np(signal), ")");
  }
  return absl::StrCat("exit status ", WEXITSTATUS(wait_status));
}

// While it lives, the calling thread stays on the core that it is on.
class OneCore {
 public:
  OneCore() {
    CPU_ZERO(&core_);
    CPU_SET(static_cast<size_t>(sched_getcpu()), &core_);
    is_bound_ = sched_getaffinity(0, sizeof(before_), &before_) == 0 &&
                sched_setaffinity(0, sizeof(core_), &core_) == 0;
  }
  ~OneCore() {
    if (is_bound_) sched_setaffinity(0, sizeof(before_), &before_);
  }
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;
  const cpu_set_t& core() const { return core_; }

 private:
  cpu_set_t core_, before_;
  bool is_bound_;
};

// Above the worker's four, so that moving them there overwrites none of them.
int moved_up(int fd) {
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, 10);
  close(fd);
  return moved;
}

}  // namespace

absl::StatusOr<std::shared_ptr<WorkerProcess>> WorkerProcess::start(const std::string& program,
                                                                    uint64_t memory_mb) {
  int memory_fd = -1;
  absl::StatusOr<WorkerMemory> memory = WorkerMemory::create(&memory_fd);
  if (!memory.ok()) return memory.status();
  memory_fd = moved_up(memory_fd);
  int log[2] = {-1, -1};
  if (pipe2(log, O_CLOEXEC | O_NONBLOCK) != 0) {
    close(memory_fd);
    return start_error(program, errno);
  }
  log[1] = moved_up(log[1]);
  pid_t pid = -1;
  const int error =
      memory_fd < 0 || log[1] < 0 ? EMFILE : spawn(program, memory_mb, memory_fd, log[1], &pid);
  close(memory_fd);
  close(log[1]);
  if (error != 0) {
    close(log[0]);
    return start_error(program, error);
  }
  const int pid_fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (pid_fd < 0) {
    const int why = errno;
    ::kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    close(log[0]);
    return start_error(program, why);
  }
  return std::shared_ptr<WorkerProcess>(new WorkerProcess(*std::move(memory), pid, pid_fd, log[0]));
}

WorkerProcess::WorkerProcess(WorkerMemory memory, pid_t pid, int pid_fd, int log_fd)
    : memory_(std::move(memory)), pid_(pid), pid_fd_(pid_fd), log_fd_(log_fd) {
  if (sched_getaffinity(0, sizeof(cores_), &cores_) != 0) CPU_ZERO(&cores_);
  for (Track& track : tracks_) track.cores = cores_;
  for (int i = kWorkerSlots; i-- > 0;) free_slots_.push_back(i);
}

WorkerProcess::~WorkerProcess() {
  close(pid_fd_);
  close(log_fd_);
}

bool WorkerProcess::has_ended() const {
  pollfd fd{pid_fd_, POLLIN, 0};
  return !is_alive_.load(std::memory_order_acquire) || poll(&fd, 1, 0) > 0;
}

void WorkerProcess::kill() {
  const MutexLock lock(&mutex_);
  if (is_buried_) return;  // the number may be somebody else's by now
  ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);
}

std::string WorkerProcess::bury() {
  kill();  // what the plugin has left behind in its group
  int wait_status = 0;
  {
    const MutexLock lock(&mutex_);
    while (waitpid(pid_, &wait_status, 0) < 0 && errno == EINTR) {
    }
    is_buried_ = true;
    is_alive_.store(false, std::memory_order_release);
  }
  for (uint32_t i = 0; i < kWorkerSlots; ++i) {
    WorkerSlot& slot = memory_.slot(i);
    // An answer that arrived before the death counts.
    if (slot.response.load() != slot.request.load()) store_and_wake_all(slot.response, kWorkerDead);
  }
  freed_.notify_all();
  return how_it_ended(wait_status);
}

WorkerProcess::Lease::Lease(WorkerProcess& process) : process_(process), index_(-1) {
  const MutexLock lock(&process_.mutex_);
  while (process_.free_slots_.empty() && !process_.is_buried_)
    process_.freed_.wait(process_.mutex_);
  if (process_.is_buried_) return;
  index_ = process_.free_slots_.back();
  process_.free_slots_.pop_back();
}

WorkerProcess::Lease::~Lease() {
  if (index_ < 0) return;
  {
    const MutexLock lock(&process_.mutex_);
    process_.free_slots_.push_back(index_);
  }
  process_.freed_.notify_one();
}

void WorkerProcess::place(int index, const cpu_set_t& cores) {
  Track& track = tracks_[index];
  if (CPU_EQUAL(&track.cores, &cores)) return;
  const auto thread =
      static_cast<pid_t>(memory_.slot(static_cast<uint32_t>(index)).worker_thread.load());
  if (tgkill(pid_, thread, 0) != 0) return;  // not one of the worker's, whatever it says
  if (sched_setaffinity(thread, sizeof(cores), &cores) == 0) track.cores = cores;
}

// Calls in a row find the worker awake on another core. One after a pause finds it asleep: then
// both sides share the caller's core until the answer is there, because another core that is idle
// would have to be woken first, and that takes several times as long. They share it too for a while
// after a call of a row that was not answered at once: it is a long one, or there is no core to
// spare; answered_at then lies in the future. In its life (open, activate) a plugin may start
// threads, which keep the cores of the thread that starts them: all of them.
WorkerAnswer WorkerProcess::Lease::transact(WorkerCall call, uint64_t ms_max) {
  constexpr std::chrono::microseconds kRow(kWorkerSpinUs);
  Track& track = process_.tracks_[index_];
  const auto begun = Clock::now();
  const bool is_in_row = begun >= track.answered_at && begun - track.answered_at < kRow;
  slot().is_in_row.store(is_in_row ? 1 : 0);
  WorkerAnswer answer{};
  if (is_in_row || call_rule(call) == nullptr) {
    process_.place(index_, process_.cores_);
    answer = ask(call, ms_max, is_in_row);
  } else {
    const OneCore here;
    process_.place(index_, here.core());
    answer = ask(call, ms_max, false);
  }
  const auto end = Clock::now();
  const bool was_in_vain = is_in_row && end - begun > kRow;
  track.answered_at = was_in_vain ? end + 200 * kRow : std::max(track.answered_at, end);
  return answer;
}

WorkerAnswer WorkerProcess::Lease::ask(WorkerCall call, uint64_t ms_max, bool looks_first) {
  WorkerSlot& slot = this->slot();
  const uint32_t number = ++process_.tracks_[index_].requests;
  slot.call = static_cast<uint32_t>(call);
  slot.threw = 0;
  store_and_wake(slot.request, number, slot.worker_sleeps);
  const uint64_t ns_max = std::min<uint64_t>(ms_max, 86'400'000) * 1'000'000;
  const uint64_t part_ns = std::clamp<uint64_t>(ns_max / 4, 1'000'000, kPartNsMax);
  for (uint64_t passed_ns = 0; passed_ns < ns_max; passed_ns += part_ns) {
    const auto end = Clock::now() + std::chrono::nanoseconds(part_ns);
    for (auto now = Clock::now(); now < end; now = Clock::now()) {
      const uint32_t seen = slot.response.load(std::memory_order_acquire);
      if (seen == number) return WorkerAnswer::kDone;
      if (seen == kWorkerDead) return WorkerAnswer::kDead;
      const auto left = std::chrono::nanoseconds(end - now);
      wait_while(slot.response, seen, slot.host_sleeps, static_cast<uint64_t>(left.count()),
                 looks_first);
    }
    if (process_.has_ended()) break;
  }
  if (slot.response.load(std::memory_order_acquire) == number) return WorkerAnswer::kDone;
  return process_.has_ended() ? WorkerAnswer::kDead : WorkerAnswer::kLate;
}

absl::StatusOr<std::string> WorkerProcess::exchange(WorkerCall call, std::string_view message,
                                                    uint64_t ms_max, mri_status* status,
                                                    mri_error* err) {
  Lease lease(*this);
  if (!lease) return absl::UnavailableError("the worker has died");
  if (message.size() > kWorkerPayloadBytes) {
    return absl::ResourceExhaustedError("a message larger than a worker's slot");
  }
  WorkerSlot& slot = lease.slot();
  std::memcpy(slot.payload, message.data(), message.size());
  slot.n_bytes = static_cast<uint32_t>(message.size());
  slot.error = mri_error{sizeof(mri_error), 0, 0, 0, {}};
  const WorkerAnswer answer = lease.transact(call, ms_max);
  if (answer == WorkerAnswer::kDead) return absl::UnavailableError("the worker has died");
  if (answer == WorkerAnswer::kLate) {
    kill();
    return absl::DeadlineExceededError(absl::StrCat("no answer in ", ms_max, " ms"));
  }
  const uint32_t n_bytes = *const_cast<volatile uint32_t*>(&slot.n_bytes);
  if (n_bytes > kWorkerPayloadBytes) return absl::InternalError("the worker answers nonsense");
  if (status != nullptr) *status = slot.status;
  if (err != nullptr) std::memcpy(err, &slot.error, sizeof(*err));
  return std::string(reinterpret_cast<const char*>(slot.payload), n_bytes);
}

}  // namespace varve
