#include "tools/varve/progress.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/varve/command.h"

namespace varve::cli {
namespace {

constexpr uint64_t kBarColumns = 24;

}  // namespace

std::string progress_text(uint64_t done, uint64_t n, double seconds) {
  std::string text = absl::StrCat(count_text(done), " of ", count_text(n), " tokens");
  if (done == 0 || seconds <= 0) return text;
  const double rate = static_cast<double>(done) / seconds;
  absl::StrAppendFormat(&text, ", %.0f tokens/s", rate);
  if (done < n) absl::StrAppendFormat(&text, ", %.0f s left", static_cast<double>(n - done) / rate);
  return text;
}

Progress::Progress()
    : is_terminal_(isatty(STDERR_FILENO) == 1), start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (has_bar_) std::fputs("\r\033[K", stderr);  // the table says it all
}

void Progress::update(uint64_t done, uint64_t n) {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
  const std::string text = progress_text(done, n, passed.count());
  if (is_terminal_) {
    has_bar_ = true;
    const uint64_t filled = n == 0 ? 0 : done * kBarColumns / n;
    const std::string bar = std::string(filled, '#') + std::string(kBarColumns - filled, '.');
    std::fprintf(stderr, "\r\033[K[%s] %s", bar.c_str(), text.c_str());
    return;
  }
  const uint64_t tenths = n == 0 ? 10 : done * 10 / n;
  if (tenths > tenths_) std::fprintf(stderr, "reading: %s\n", text.c_str());
  tenths_ = tenths;
}

}  // namespace varve::cli
