#include "kernels/gemm.h"

#include <cstdint>

#include "kernels/number.h"

namespace varve::kernels::ref {
namespace {

float value(GemmType type, const void* matrix, size_t index) {
  if (type == GemmType::kF32) return static_cast<const float*>(matrix)[index];
  return f32_from_bf16(static_cast<const uint16_t*>(matrix)[index]);
}

}  // namespace

void gemm(const GemmShape& s, const void* a, const void* w, float* c) {
  for (size_t i = 0; i < s.m; ++i) {
    for (size_t j = 0; j < s.n; ++j) {
      double sum = s.accumulate ? c[i * s.ldc + j] : 0.0;
      for (size_t p = 0; p < s.k; ++p) {
        const size_t at = s.w_is_kn ? p * s.ldw + j : j * s.ldw + p;
        sum += static_cast<double>(value(s.type, a, i * s.lda + p)) *
               static_cast<double>(value(s.type, w, at));
      }
      c[i * s.ldc + j] = static_cast<float>(sum);
    }
  }
}

}  // namespace varve::kernels::ref
