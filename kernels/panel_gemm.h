// y [m][n1 - n0] (+)= x [m][k] * W[n0..n1)^T for rows of bf16 and weights packed as bf16 panels:
// the product between matvec(), which is limited by the few rows that it takes, and gemm(), which
// reorders weights in every call. n0 is a multiple of 16; n1 is one too, or w.n(). Strides in
// elements. So callers split W's panels over their threads; a panel is read from memory once for
// all rows. Products of bf16 pairs are summed in f32; denormal products count as zero (cpu).
// Touches nothing outside x [m][k] and y [m][n1 - n0]. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/weights.h"

namespace varve::kernels {
namespace ref {
void panel_gemm(const PackedWeights& w, const uint16_t* x, size_t m, size_t x_stride, float* y,
                size_t y_stride, size_t n0, size_t n1, bool accumulate);
}
namespace cpu {
// w is kBf16.
void panel_gemm(const PackedWeights& w, const uint16_t* x, size_t m, size_t x_stride, float* y,
                size_t y_stride, size_t n0, size_t n1, bool accumulate);

// Whether it is fast here (AVX512_BF16); elsewhere it is ref's.
bool has_panel_gemm();
}  // namespace cpu
}  // namespace varve::kernels
