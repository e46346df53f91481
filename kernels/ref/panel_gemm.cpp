#include "kernels/panel_gemm.h"

#include "kernels/number.h"

namespace varve::kernels::ref {

void panel_gemm(const PackedWeights& w, const uint16_t* x, size_t m, size_t x_stride, float* y,
                size_t y_stride, size_t n0, size_t n1, bool accumulate) {
  for (size_t i = 0; i < m; ++i) {
    for (size_t n = n0; n < n1; ++n) {
      float& out = y[i * y_stride + n - n0];
      double sum = accumulate ? out : 0.0;
      for (size_t c = 0; c < w.k(); ++c)
        sum += static_cast<double>(f32_from_bf16(x[i * x_stride + c])) * w.at(n, c);
      out = static_cast<float>(sum);
    }
  }
}

}  // namespace varve::kernels::ref
