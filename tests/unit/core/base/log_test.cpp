#include "core/base/log.h"

#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

namespace varve {
namespace {

constexpr const char* kTime = "2026-01-31T12:00:00.123Z";

TEST(LogLine, TextHasTimeLevelAndSpeaker) {
  EXPECT_EQ(log_line(LogFormat::kText, kTime, LogLevel::kWarning, "host", "low memory"),
            "2026-01-31T12:00:00.123Z warning host: low memory\n");
}

TEST(LogLine, JsonStaysJsonWhateverThePluginSays) {
  const std::string line = log_line(LogFormat::kJson, kTime, LogLevel::kError, "kv_tier-age",
                                    "a \"quote\"\n\xff and\x1b[0m");
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const nlohmann::json parsed = nlohmann::json::parse(line);
  EXPECT_EQ(parsed["level"], "error");
  EXPECT_EQ(parsed["who"], "kv_tier-age");
  EXPECT_EQ(parsed["text"], "a \"quote\"\n? and?[0m");
}

TEST(StderrLog, DropsLinesBelowItsLevel) {
  const LogSink log = stderr_log(LogLevel::kWarning, LogFormat::kText);
  testing::internal::CaptureStderr();
  log(LogLevel::kInfo, "host", "not shown");
  log(LogLevel::kWarning, "host", "shown");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("not shown"), std::string::npos);
  EXPECT_NE(text.find("warning host: shown\n"), std::string::npos);
}

}  // namespace
}  // namespace varve
