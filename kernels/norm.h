// y = x * w / sqrt(mean(x^2) + eps) for one row of n values. y may be x. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace varve::kernels {
namespace ref {
void rms_norm(const float* x, const float* w, float eps, float* y, size_t n);
void rms_norm_bf16(const float* x, const float* w, float eps, uint16_t* y, size_t n);
}  // namespace ref
namespace cpu {
void rms_norm(const float* x, const float* w, float eps, float* y, size_t n);
void rms_norm_bf16(const float* x, const float* w, float eps, uint16_t* y, size_t n);
}  // namespace cpu
}  // namespace varve::kernels
