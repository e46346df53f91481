#include "kernels/matvec.h"

namespace varve::kernels::ref {

void matvec(const PackedWeights& w, const float* x, size_t m, size_t x_stride, float* y,
            size_t y_stride, size_t n0, size_t n1) {
  for (size_t row = n0; row < n1; ++row) {
    for (size_t i = 0; i < m; ++i) {
      double sum = 0;
      for (size_t c = 0; c < w.k(); ++c) {
        sum += static_cast<double>(w.at(row, c)) * static_cast<double>(x[i * x_stride + c]);
      }
      y[i * y_stride + row] = static_cast<float>(sum);
    }
  }
}

}  // namespace varve::kernels::ref
