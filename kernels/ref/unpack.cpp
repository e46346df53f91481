#include "kernels/unpack.h"

#include "kernels/number.h"

namespace varve::kernels::ref {

void unpack_rows_f32(const PackedWeights& w, size_t n0, size_t n1, float* out, size_t out_stride) {
  for (size_t row = n0; row < n1; ++row) {
    for (size_t c = 0; c < w.k(); ++c) out[(row - n0) * out_stride + c] = w.at(row, c);
  }
}

void unpack_rows_bf16(const PackedWeights& w, size_t n0, size_t n1, uint16_t* out,
                      size_t out_stride) {
  for (size_t row = n0; row < n1; ++row) {
    for (size_t c = 0; c < w.k(); ++c) {
      out[(row - n0) * out_stride + c] = bf16_from_f32(w.at(row, c));
    }
  }
}

}  // namespace varve::kernels::ref
