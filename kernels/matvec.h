// y [m][n0..n1) = x [m][k] * W^T for a few rows m (fast up to 16; more work too) and a range of
// output rows. n0 is a multiple of 16; n1 is one too, or w.n(). So callers split W's panels over
// their threads; every thread reads all of x and writes its own columns of y. Strides in elements.
// Touches nothing outside x [m][k] and y [m][n0..n1). Accuracy: x is used with at least 16 bits
// relative to the largest of 32 neighbours (cpu, VNNI) or as f32; sums are f32. No 8-bit
// activations. NaN or infinity in x gives NaN or infinity in y. Thread-safe. A thread's scratch (2
// bytes per element of x) grows to the largest k it has seen.
#pragma once

#include <cstddef>

#include "kernels/weights.h"

namespace varve::kernels {
namespace ref {
void matvec(const PackedWeights& w, const float* x, size_t m, size_t x_stride, float* y,
            size_t y_stride, size_t n0, size_t n1);
}
namespace cpu {
void matvec(const PackedWeights& w, const float* x, size_t m, size_t x_stride, float* y,
            size_t y_stride, size_t n0, size_t n1);
}
}  // namespace varve::kernels
