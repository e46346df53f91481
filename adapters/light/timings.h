// timings.h: where the time of forward calls goes, for the contexts that asked (mri.timings/1).
//
// A call that several contexts share is divided among them: attention by the keys that each one's
// queries read, all else by tokens, the choices of answers evenly. Without a context that asked no
// clock is read.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "mri/ext/timings.h"
#include "mri/kind/attention.h"

namespace varve::light {

struct ForwardSeq;

// Adds the time of its life to *ns; null: reads no clock.
class Timer {
 public:
  explicit Timer(uint64_t* ns) : ns_(ns) {
    if (ns_ != nullptr) start_ = std::chrono::steady_clock::now();
  }
  ~Timer() {
    if (ns_ == nullptr) return;
    const std::chrono::nanoseconds passed = std::chrono::steady_clock::now() - start_;
    *ns_ += static_cast<uint64_t>(passed.count());
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  uint64_t* const ns_;
  std::chrono::steady_clock::time_point start_;
};

// Of what belongs to one context's memory; null when the context did not ask.
inline uint64_t* kv_cache_ns(mri_timings* timings) {
  return timings != nullptr ? &timings->kv_cache_ns : nullptr;
}

// One forward call.
struct CallTimes {
  explicit CallTimes(size_t n_seqs) : reads(n_seqs) { attention.struct_size = sizeof(attention); }

  mri_attn_times attention{};
  uint64_t write_ns = 0, call_ns = 0;
  std::vector<double> reads;  // pages times queries, by sequence

  void add_plan(const mri_attn_plan& plan);
  // Adds each sequence's part to its timings, if it has any.
  void share(std::span<const ForwardSeq> seqs) const;
};

}  // namespace varve::light
