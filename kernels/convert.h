// f32 <-> bf16 for n consecutive values. To bf16: round to nearest even, NaN stays NaN.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace varve::kernels {
namespace ref {
void bf16_from_f32(const float* x, uint16_t* y, size_t n);
void f32_from_bf16(const uint16_t* x, float* y, size_t n);
}  // namespace ref
namespace cpu {
void bf16_from_f32(const float* x, uint16_t* y, size_t n);
void f32_from_bf16(const uint16_t* x, float* y, size_t n);
}  // namespace cpu
}  // namespace varve::kernels
