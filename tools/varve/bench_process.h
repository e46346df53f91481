// An engine in a process of its own, so that its peak memory is its own. Both sides of the
// conversation: one JSON object per line, over a socket that is the child's standard input.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace varve::cli {

using Json = nlohmann::ordered_json;

// Lines over a socket. One thread at a time.
class LineSocket {
 public:
  explicit LineSocket(int fd) : fd_(fd) {}
  // kAborted when the other side is gone, kCancelled when a signal came.
  absl::Status write(const Json& line);
  absl::StatusOr<Json> read();

 private:
  const int fd_;
  std::string unread_;
};

class EngineProcess {
 public:
  // Runs this very program with `arguments`. The child dies with its parent.
  static absl::StatusOr<std::unique_ptr<EngineProcess>> start(
      const std::vector<std::string>& arguments);
  ~EngineProcess();  // ends the child
  EngineProcess(const EngineProcess&) = delete;
  EngineProcess& operator=(const EngineProcess&) = delete;

  // Sends a line and waits for the answer; {"error": text} becomes an error.
  absl::StatusOr<Json> ask(const Json& line);

 private:
  EngineProcess(pid_t child, int fd) : child_(child), fd_(fd), socket_(fd) {}
  const pid_t child_;
  const int fd_;
  LineSocket socket_;
};

}  // namespace varve::cli
