#include "mri/conformance/calling.h"

#include <atomic>
#include <fstream>
#include <thread>

namespace mri::conformance {
namespace {

// Well-formed UTF-8 as of RFC 3629, except that overlong and surrogate forms of three and four
// bytes are not looked for.
bool is_utf8(const char* text, uint64_t n) {
  for (uint64_t i = 0; i < n;) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const uint64_t more = lead < 0x80   ? 0
                          : lead < 0xc2 ? 9
                          : lead < 0xe0 ? 1
                          : lead < 0xf0 ? 2
                          : lead < 0xf5 ? 3
                                        : 9;
    if (more == 9 || i + more >= n + (more == 0 ? 1 : 0)) return false;
    for (uint64_t j = 1; j <= more; ++j) {
      if ((static_cast<unsigned char>(text[i + j]) & 0xc0u) != 0x80u) return false;
    }
    i += more + 1;
  }
  return true;
}

}  // namespace

bool is_listed(mri_status status) { return status >= MRI_OK && status <= MRI_E_SPACE; }

std::string said(mri_status status, const mri_error& err) {
  const std::string text(err.msg, std::min<uint64_t>(err.msg_len, sizeof(err.msg) - 1));
  return "status " + std::to_string(status) + (text.empty() ? "" : " (" + text + ")");
}

ErrorBox::ErrorBox() : err_(1) { err_[0].struct_size = sizeof(mri_error); }

void ErrorBox::check(Bench& bench, const std::string& what, mri_status status) const {
  const mri_error& err = err_[0];
  Report& report = *bench.report;
  report.expect(err_.is_intact(), what + ": wrote outside the caller's mri_error");
  report.expect(is_listed(status), what + ": returned " + std::to_string(status) +
                                       ", which is no status of mri/status.h");
  if (status == MRI_OK) return;
  const bool ends = err.msg_len < sizeof(err.msg) && err.msg[err.msg_len] == '\0';
  report.expect(ends, what + ": error text of msg_len " + std::to_string(err.msg_len) +
                          " without a NUL at its end");
  if (ends) report.expect(is_utf8(err.msg, err.msg_len), what + ": error text that is not UTF-8");
}

bool sleeps_each_time(const std::function<void()>& f) {
  constexpr int kCalls = 20;
  const auto sleeps = [] {
    std::ifstream status("/proc/thread-self/status");
    uint64_t n = 0;
    for (std::string word; status >> word && word != "voluntary_ctxt_switches:";) continue;
    status >> n;
    return n;
  };
  for (int i = 0; i < kCalls; ++i) {
    const uint64_t before = sleeps();
    f();
    if (sleeps() == before) return false;
  }
  return true;
}

void in_four_threads(Bench& bench, int times, const std::string& what,
                     const std::function<bool(uint64_t thread)>& is_right) {
  constexpr uint64_t kThreads = 4;
  std::atomic<uint64_t> wrong{0};
  const auto work = [&](uint64_t thread) {
    for (int i = 0; i < times; ++i) {
      try {
        wrong += is_right(thread) ? 0 : 1;
      } catch (const Stop&) {
        ++wrong;
        return;
      }
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  bench.report->expect(wrong == 0, std::to_string(wrong) + " of " +
                                       std::to_string(kThreads * static_cast<uint64_t>(times)) +
                                       " " + what + " in four threads are wrong");
}

}  // namespace mri::conformance
