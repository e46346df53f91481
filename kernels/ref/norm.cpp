#include "kernels/norm.h"

#include <cmath>

#include "kernels/number.h"

namespace varve::kernels::ref {
namespace {

float inverse_rms(const float* x, float eps, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(n) + eps));
}

}  // namespace

void rms_norm(const float* x, const float* w, float eps, float* y, size_t n) {
  const float inverse = inverse_rms(x, eps, n);
  for (size_t i = 0; i < n; ++i) y[i] = x[i] * inverse * w[i];
}

void rms_norm_bf16(const float* x, const float* w, float eps, uint16_t* y, size_t n) {
  const float inverse = inverse_rms(x, eps, n);
  for (size_t i = 0; i < n; ++i) y[i] = bf16_from_f32(x[i] * inverse * w[i]);
}

}  // namespace varve::kernels::ref
