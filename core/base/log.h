// Log lines of the host and its plugins.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace varve {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Takes one line: who says it ("host", "quantizer-int8"), what. Called from any thread at any time.
using LogSink = std::function<void(LogLevel level, std::string_view who, std::string_view text)>;

enum class LogFormat { kText, kJson };

// Writes lines of `level` and above to stderr, each with one write:
// text  "2026-01-31T12:00:00.123Z warning quantizer-int8: …"
// json  {"time":"…","level":"warning","who":"quantizer-int8","text":"…"}
LogSink stderr_log(LogLevel level, LogFormat format);

// One such line with its line feed; `time` as in the examples.
std::string log_line(LogFormat format, std::string_view time, LogLevel level, std::string_view who,
                     std::string_view text);

}  // namespace varve
