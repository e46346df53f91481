// What this machine can do at best: the measures that `varve doctor` and the benchmarks compare
// with. Each function works in the calling thread; run it in several threads at once for the
// machine's total. Seconds are of the thread's CPU time.
#pragma once

#include <cstddef>

#include "kernels/gemm.h"

namespace varve::kernels {

// Bytes per second read from `data`, over and over for about `seconds` (at least once). Larger than
// the caches, it measures memory. `bytes` is at least 128.
double measure_read_bandwidth(const void* data, size_t bytes, double seconds);

// Floating-point operations per second of cpu::gemm on matrices that fit the caches (512 x 1024 x
// 1024), the best of several tries within about `seconds`.
double measure_gemm_peak(GemmType type, double seconds);

}  // namespace varve::kernels
