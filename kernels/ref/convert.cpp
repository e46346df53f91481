#include "kernels/convert.h"

#include "kernels/number.h"

namespace varve::kernels::ref {

void bf16_from_f32(const float* x, uint16_t* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = kernels::bf16_from_f32(x[i]);
}

void f32_from_bf16(const uint16_t* x, float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = kernels::f32_from_bf16(x[i]);
}

}  // namespace varve::kernels::ref
