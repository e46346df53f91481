// The integer path of matvec for 8-bit and 4-bit weights, on CPUs with AVX512_VNNI only
// (cpu_target() says).
#pragma once

#include <cstddef>

#include "kernels/weights.h"

namespace varve::kernels::cpu {

// As matvec(); w is kW4 or kW8.
void matvec_vnni(const PackedWeights& w, const float* x, size_t m, size_t x_stride, float* y,
                 size_t y_stride, size_t n0, size_t n1);

}  // namespace varve::kernels::cpu
