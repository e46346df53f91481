#include "tools/varve/server_log.h"

#include <unistd.h>

namespace varve::cli {
namespace {

LogLevel level_of(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  return name == "error" ? LogLevel::kError : LogLevel::kInfo;
}

LogFormat format_of(const std::string& name) {
  if (name == "auto") return isatty(STDERR_FILENO) != 0 ? LogFormat::kText : LogFormat::kJson;
  return name == "json" ? LogFormat::kJson : LogFormat::kText;
}

}  // namespace

ServerLog::ServerLog(const std::string& format, const std::string& level)
    : write_(stderr_log(LogLevel::kDebug, format_of(format))),
      level_(std::make_shared<std::atomic<LogLevel>>(level_of(level))) {}

void ServerLog::set_level(const std::string& level) { level_->store(level_of(level)); }

LogSink ServerLog::sink() const {
  return
      [write = write_, level = level_](LogLevel at, std::string_view who, std::string_view text) {
        if (at >= level->load(std::memory_order_relaxed)) write(at, who, text);
      };
}

}  // namespace varve::cli
