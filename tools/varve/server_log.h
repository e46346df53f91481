// The log of a running server: its level may change while it runs.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "core/base/log.h"

namespace varve::cli {

// `format`: auto (text on a terminal, else JSON), text, json. `level`: debug, info, warning, error.
class ServerLog {
 public:
  ServerLog(const std::string& format, const std::string& level);
  void set_level(const std::string& level);
  // Shares the level; usable as long as anybody holds it.
  LogSink sink() const;

 private:
  LogSink write_;
  std::shared_ptr<std::atomic<LogLevel>> level_;
};

}  // namespace varve::cli
