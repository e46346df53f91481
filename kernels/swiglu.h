// y = silu(gate) * up, silu(g) = g / (1 + exp(-g)), for n values. y may be gate or up. Thread-safe.
// cpu: relative error of silu at most 1e-6 where the result is a normal number.
#pragma once

#include <cstddef>
#include <cstdint>

namespace varve::kernels {
namespace ref {
void swiglu(const float* gate, const float* up, float* y, size_t n);
void swiglu_bf16(const float* gate, const float* up, uint16_t* y, size_t n);
}  // namespace ref
namespace cpu {
void swiglu(const float* gate, const float* up, float* y, size_t n);
void swiglu_bf16(const float* gate, const float* up, uint16_t* y, size_t n);
}  // namespace cpu
}  // namespace varve::kernels
