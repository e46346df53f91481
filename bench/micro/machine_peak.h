// What one thread of this machine does at best, measured once per program; shares are of these.
#pragma once

#include <vector>

#include "kernels/peak.h"

namespace varve::kernels {

inline double gemm_peak(GemmType type) {
  static const double f32 = measure_gemm_peak(GemmType::kF32, 0.3);
  static const double bf16 = measure_gemm_peak(GemmType::kBf16, 0.3);
  return type == GemmType::kF32 ? f32 : bf16;
}

// Bytes per second from memory, well beyond the last cache.
inline double memory_peak() {
  static const double peak = [] {
    const std::vector<uint64_t> data((size_t{256} << 20) / 8, 1);
    return measure_read_bandwidth(data.data(), data.size() * 8, 0.3);
  }();
  return peak;
}

}  // namespace varve::kernels
