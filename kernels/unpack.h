// Rows [n0, n1) of a packed matrix as plain row-major numbers, out [n1 - n0][out_stride] (the first
// k of each row are written), for gemm(). Any range: single rows serve as embedding lookups.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/weights.h"

namespace varve::kernels {
namespace ref {
void unpack_rows_f32(const PackedWeights& w, size_t n0, size_t n1, float* out, size_t out_stride);
void unpack_rows_bf16(const PackedWeights& w, size_t n0, size_t n1, uint16_t* out,
                      size_t out_stride);
}  // namespace ref
namespace cpu {
void unpack_rows_f32(const PackedWeights& w, size_t n0, size_t n1, float* out, size_t out_stride);
void unpack_rows_bf16(const PackedWeights& w, size_t n0, size_t n1, uint16_t* out,
                      size_t out_stride);
}  // namespace cpu
}  // namespace varve::kernels
