#include "core/base/log.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/limits.h"
#include "core/base/text.h"
#include "nlohmann/json.hpp"

namespace varve {
namespace {

constexpr const char* kLevelNames[] = {"debug", "info", "warning", "error"};

}  // namespace

std::string log_line(LogFormat format, std::string_view time, LogLevel level, std::string_view who,
                     std::string_view text) {
  const char* name = kLevelNames[static_cast<int>(level)];
  const std::string clean = clean_text(text, kLogLineBytesMax);
  if (format == LogFormat::kText) {
    return absl::StrCat(std::string(time), " ", name, " ", std::string(who), ": ", clean, "\n");
  }
  nlohmann::ordered_json line;
  line["time"] = time;
  line["level"] = name;
  line["who"] = clean_text(who, kPluginTextBytesMax);
  line["text"] = clean;
  return line.dump() + "\n";
}

LogSink stderr_log(LogLevel level, LogFormat format) {
  return [level, format](LogLevel line_level, std::string_view who, std::string_view text) {
    if (line_level < level) return;
    const std::string time =
        absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
    const std::string line = log_line(format, time, line_level, who, text);
    // A log that cannot be written has nobody to tell.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  };
}

}  // namespace varve
