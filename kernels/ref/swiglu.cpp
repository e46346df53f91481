#include "kernels/swiglu.h"

#include <cmath>

#include "kernels/number.h"

namespace varve::kernels::ref {
namespace {

float silu(float g) { return static_cast<float>(g / (1.0 + std::exp(-static_cast<double>(g)))); }

}  // namespace

void swiglu(const float* gate, const float* up, float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = silu(gate[i]) * up[i];
}

void swiglu_bf16(const float* gate, const float* up, uint16_t* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = bf16_from_f32(silu(gate[i]) * up[i]);
}

}  // namespace varve::kernels::ref
