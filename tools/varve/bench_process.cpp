#include "tools/varve/bench_process.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace varve::cli {
namespace {

absl::Status failed(const char* what) {
  if (errno == EINTR) return absl::CancelledError("interrupted");
  return absl::AbortedError(
      absl::StrCat("an engine's process: ", what, ": ", std::strerror(errno)));
}

}  // namespace

absl::Status LineSocket::write(const Json& line) {
  const std::string bytes = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = send(fd_, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (n < 0) return failed("writing to it failed");
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> LineSocket::read() {
  size_t end = unread_.find('\n');
  while (end == std::string::npos) {
    char buffer[65536];
    const ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
    if (n < 0) return failed("reading from it failed");
    if (n == 0) return absl::AbortedError("an engine's process ended before it answered");
    const size_t seen = unread_.size();
    unread_.append(buffer, static_cast<size_t>(n));
    end = unread_.find('\n', seen);
  }
  Json line = Json::parse(unread_.begin(), unread_.begin() + static_cast<ptrdiff_t>(end), nullptr,
                          /*allow_exceptions=*/false);
  unread_.erase(0, end + 1);
  if (!line.is_object()) return absl::InternalError("an engine's process wrote no JSON object");
  return line;
}

absl::StatusOr<std::unique_ptr<EngineProcess>> EngineProcess::start(
    const std::vector<std::string>& arguments) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
    return failed("making a socket failed");
  std::vector<std::string> words = {"varve"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    // Only calls that are allowed between fork and exec. Standard output stays the report's.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(sockets[1], STDIN_FILENO) < 0 ||
        dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
      _exit(127);
    }
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  close(sockets[1]);
  if (child < 0) {
    close(sockets[0]);
    return failed("starting it failed");
  }
  return std::unique_ptr<EngineProcess>(new EngineProcess(child, sockets[0]));
}

EngineProcess::~EngineProcess() {
  close(fd_);
  kill(child_, SIGKILL);
  while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

absl::StatusOr<Json> EngineProcess::ask(const Json& line) {
  const absl::Status written = socket_.write(line);
  if (!written.ok()) return written;
  absl::StatusOr<Json> answer = socket_.read();
  if (!answer.ok()) return answer.status();
  const auto error = answer->find("error");
  if (error != answer->end() && error->is_string())
    return absl::FailedPreconditionError(error->get<std::string>());
  return answer;
}

}  // namespace varve::cli
