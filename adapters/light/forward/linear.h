// linear.h: products of rows with the model's packed matrices, by row range so that callers can
// split them over threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "adapters/light/model/load_model.h"
#include "kernels/attend.h"

namespace varve::light {

// y [m][n0..n1) = x [m][k] W^T for a few rows m. n0 and n1 are multiples of 16 or the ends of a
// part.
void multiply_few(const kernels::PackedWeights& w, const float* x, size_t m, float* y,
                  size_t y_stride, size_t n0, size_t n1);
void multiply_few(const RowParts& parts, const float* x, size_t m, float* y, size_t y_stride,
                  size_t n0, size_t n1);

// The share of n rows (whole panels of 16) that part `i` of `n_parts` computes.
std::pair<size_t, size_t> panel_range(size_t n, size_t i, size_t n_parts);

// A matrix as plain row-major numbers in the type that oneDNN multiplies: bf16 or f32 [n][k].
class PlainMatrix {
 public:
  void reshape(size_t n, size_t k, kernels::Compute compute);
  // Fills rows [to, to + n1 - n0) from rows [n0, n1) of the packed matrix.
  void unpack(const RowParts& parts, size_t n0, size_t n1, size_t to);
  void unpack(const kernels::PackedWeights& w, size_t n0, size_t n1, size_t to);

  size_t n() const { return n_; }
  size_t k() const { return k_; }
  // c [m][n] (+)= a [m][k] W^T; a has this matrix's type, strides in elements.
  void multiply(const void* a, size_t m, size_t a_stride, float* c, size_t c_stride,
                bool accumulate) const;

 private:
  uint8_t* row(size_t r) { return bytes_.data() + r * k_ * element_; }

  size_t n_ = 0, k_ = 0, element_ = 2;
  std::vector<uint8_t> bytes_;
};

}  // namespace varve::light
