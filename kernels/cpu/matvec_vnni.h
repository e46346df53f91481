// The integer path of matvec for 8-bit and 4-bit weights, on CPUs with AVX512_VNNI only
// (cpu_target() says).
#pragma once

#include <cstddef>

#include "kernels/weights.h"

namespace varve::kernels::cpu {

// How far ahead of their use packed weights are asked for. A panel is too short for the hardware to
// see the stream: without this, one thread reads 13 GB/s of 4-bit weights from memory, with 2 KiB
// 20, 4 KiB 25, 8 KiB 30, 16 KiB 27 (Zen 5).
inline constexpr size_t kPrefetchBytes = 8192;

// As matvec(); w is kW4 or kW8.
void matvec_vnni(const PackedWeights& w, const float* x, size_t m, size_t x_stride, float* y,
                 size_t y_stride, size_t n0, size_t n1);

}  // namespace varve::kernels::cpu
