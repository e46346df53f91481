// How far the reading of a prompt is, on stderr: a bar on a terminal, a line per tenth elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace varve::cli {

// "12,288 of 45,012 tokens, 3210 tokens/s, 10 s left" after `seconds`.
std::string progress_text(uint64_t done, uint64_t n, double seconds);

class Progress {
 public:
  Progress();  // starts the clock
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(uint64_t done, uint64_t n);

 private:
  const bool is_terminal_;
  const std::chrono::steady_clock::time_point start_;
  uint64_t tenths_ = 0;  // told so far, where there is no terminal
  bool has_bar_ = false;
};

}  // namespace varve::cli
