#include "tools/mri_conform/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"

#if defined(__has_feature)
#define VARVE_HAS_FEATURE(x) __has_feature(x)
#else
#define VARVE_HAS_FEATURE(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    VARVE_HAS_FEATURE(address_sanitizer) || VARVE_HAS_FEATURE(thread_sanitizer)
#define VARVE_SHADOW_MEMORY 1  // terabytes of addresses
#else
#define VARVE_SHADOW_MEMORY 0
#endif

namespace varve::conform {
namespace {

constexpr uint64_t kMemoryMax = uint64_t{8} << 30;
constexpr uint64_t kFileBytesMax = uint64_t{64} << 20;
constexpr uint64_t kFilesMax = 512;
constexpr uint64_t kMessageBytesMax = 4096;
constexpr uint64_t kMessagesMax = 1000;
constexpr size_t kOutputShown = 2000;
constexpr int kSliceMs = 50;
constexpr char kAnswer = 'A';
constexpr char kDone = 'D';

void limit(int what, uint64_t value) {
  const rlimit both{value, value};
  setrlimit(static_cast<__rlimit_resource_t>(what), &both);
}

// A message is a letter, 4 bytes of length, and the text.
void send(int pipe, char letter, const std::string& text) {
  const auto n = static_cast<uint32_t>(std::min<uint64_t>(text.size(), kMessageBytesMax));
  std::string message(1 + sizeof(n) + n, letter);
  std::memcpy(&message[1], &n, sizeof(n));
  std::memcpy(&message[1 + sizeof(n)], text.data(), n);
  // Less than PIPE_BUF or one writer at a time (Report locks): it arrives whole.
  for (size_t at = 0; at < message.size();) {
    const ssize_t written = write(pipe, message.data() + at, message.size() - at);
    if (written <= 0) _exit(3);
    at += static_cast<size_t>(written);
  }
}

[[noreturn]] void be_child(int pipe, int output, double timeout_s,
                           const std::function<void(const Parent&)>& work) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
  dup2(output, 1);
  dup2(output, 2);
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, 4 * static_cast<uint64_t>(timeout_s) + 4);  // several threads
  limit(RLIMIT_NOFILE, kFilesMax);
  limit(RLIMIT_FSIZE, kFileBytesMax);
  if (!VARVE_SHADOW_MEMORY) limit(RLIMIT_AS, kMemoryMax);
  work({[pipe](Report::What what, const std::string& text) {
          send(pipe, static_cast<char>(what), text);
        },
        [pipe](const std::string& text) { send(pipe, kAnswer, text); }});
  send(pipe, kDone, "");
  std::exit(0);  // with the plugin's exit handlers and destructors
}

// Takes whole messages off the front of `bytes`.
void receive(std::string* bytes, Ended* ended, bool* done) {
  size_t at = 0;
  for (;;) {
    uint32_t n = 0;
    if (bytes->size() - at < 1 + sizeof(n)) break;
    std::memcpy(&n, bytes->data() + at + 1, sizeof(n));
    if (n > kMessageBytesMax || bytes->size() - at - 1 - sizeof(n) < n) break;
    const char letter = (*bytes)[at];
    const std::string text = bytes->substr(at + 1 + sizeof(n), n);
    at += 1 + sizeof(n) + n;
    if (letter == kDone) *done = true;
    if (letter == kAnswer && ended->answers.size() < kMessagesMax) ended->answers.push_back(text);
    const bool is_finding = std::strchr("FWIN", letter) != nullptr && letter != '\0';
    if (is_finding && ended->findings.size() < kMessagesMax) {
      ended->findings.push_back({static_cast<Report::What>(letter), text});
    }
  }
  bytes->erase(0, at);
}

// Reads what is there, waiting at most a slice. Returns whether anything came.
bool read_some(int pipe, int wait_ms, std::string* bytes) {
  pollfd ready{pipe, POLLIN, 0};
  if (poll(&ready, 1, wait_ms) <= 0) return false;
  char buffer[65536];
  const ssize_t n = read(pipe, buffer, sizeof(buffer));
  if (n <= 0) return false;
  bytes->append(buffer, static_cast<size_t>(n));
  return true;
}

std::string tail_of(int file) {
  const off_t size = lseek(file, 0, SEEK_END);
  const off_t from = std::max<off_t>(0, size - static_cast<off_t>(kOutputShown));
  std::string text(static_cast<size_t>(std::max<off_t>(0, size - from)), '\0');
  const ssize_t n = pread(file, text.data(), text.size(), from);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return text;
}

void judge(int status, bool done, Ended* ended) {
  if (WIFSIGNALED(status)) {
    ended->how = Ended::How::kCrash;
    ended->why = absl::StrCat("signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")",
                              done ? " at the end of the process, after the test" : "");
  } else if (!done || WEXITSTATUS(status) != 0) {
    ended->how = Ended::How::kCrash;
    ended->why = absl::StrCat("the process ended with exit code ", WEXITSTATUS(status),
                              done ? " after the test" : " in the middle of the test");
  }
}

}  // namespace

Ended run_in_child(double timeout_s, const std::function<void(const Parent&)>& work) {
  Ended ended;
  int pipes[2];
  const int output = memfd_create("output", MFD_CLOEXEC);
  if (output < 0 || pipe2(pipes, O_CLOEXEC) != 0) {
    ended.how = Ended::How::kCrash;
    ended.why = "no pipe or memory file for a child: too many open files?";
    return ended;
  }
  const pid_t child = fork();
  if (child == 0) {
    close(pipes[0]);
    be_child(pipes[1], output, timeout_s, work);
  }
  close(pipes[1]);
  setpgid(child, child);
  using Clock = std::chrono::steady_clock;
  std::string bytes;
  bool done = false, killed = false;
  int status = 0;
  for (Clock::time_point last = Clock::now();;) {
    read_some(pipes[0], kSliceMs, &bytes);
    receive(&bytes, &ended, &done);
    if (child < 0 || waitpid(child, &status, WNOHANG) == child) break;
    const Clock::time_point now = Clock::now();
    // While this process is stopped, so is the machine for it: a slice is at most twice as long.
    ended.seconds += std::min(std::chrono::duration<double>(now - last).count(), 2e-3 * kSliceMs);
    last = now;
    if (ended.seconds < timeout_s || killed) continue;
    killed = true;
    kill(-child, SIGKILL);
  }
  while (read_some(pipes[0], 0, &bytes)) continue;
  receive(&bytes, &ended, &done);
  if (child > 0 && kill(-child, SIGKILL) == 0 && !killed) {
    ended.findings.push_back({Report::What::kFail, "left a process running"});
  }
  ended.output = tail_of(output);
  close(pipes[0]);
  close(output);
  judge(status, done, &ended);
  if (killed) {
    ended.how = Ended::How::kTimeout;
    ended.why = absl::StrCat("killed after ", timeout_s, " s");
  }
  return ended;
}

}  // namespace varve::conform
