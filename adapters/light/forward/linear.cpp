#include "adapters/light/forward/linear.h"

#include <algorithm>

#include "kernels/gemm.h"
#include "kernels/matvec.h"
#include "kernels/unpack.h"

namespace varve::light {
namespace {

// Calls f(part, first row in the part, last, first row in the whole) for the parts that rows [n0,
// n1) touch.
template <class F>
void for_parts(const RowParts& parts, size_t n0, size_t n1, F&& f) {
  size_t base = 0;
  for (const kernels::PackedWeights& part : parts) {
    const size_t from = std::max(n0, base), to = std::min(n1, base + part.n());
    if (from < to) f(part, from - base, to - base, base);
    base += part.n();
  }
}

}  // namespace

void multiply_few(const kernels::PackedWeights& w, const float* x, size_t m, float* y,
                  size_t y_stride, size_t n0, size_t n1) {
  if (n0 < n1) kernels::cpu::matvec(w, x, m, w.k(), y, y_stride, n0, n1);
}

void multiply_few(const RowParts& parts, const float* x, size_t m, float* y, size_t y_stride,
                  size_t n0, size_t n1) {
  for_parts(parts, n0, n1,
            [&](const kernels::PackedWeights& part, size_t from, size_t to, size_t base) {
              kernels::cpu::matvec(part, x, m, part.k(), y + base, y_stride, from, to);
            });
}

std::pair<size_t, size_t> panel_range(size_t n, size_t i, size_t n_parts) {
  const size_t panels = (n + kernels::kPanelRows - 1) / kernels::kPanelRows;
  const size_t first = panels * i / n_parts, last = panels * (i + 1) / n_parts;
  return {std::min(n, first * kernels::kPanelRows), std::min(n, last * kernels::kPanelRows)};
}

void PlainMatrix::reshape(size_t n, size_t k, kernels::Compute compute) {
  n_ = n;
  k_ = k;
  element_ = compute == kernels::Compute::kBf16 ? 2 : 4;
  if (bytes_.size() < n * k * element_) bytes_.resize(n * k * element_);
}

void PlainMatrix::unpack(const kernels::PackedWeights& w, size_t n0, size_t n1, size_t to) {
  if (element_ == 2) {
    kernels::cpu::unpack_rows_bf16(w, n0, n1, reinterpret_cast<uint16_t*>(row(to)), k_);
  } else {
    kernels::cpu::unpack_rows_f32(w, n0, n1, reinterpret_cast<float*>(row(to)), k_);
  }
}

void PlainMatrix::unpack(const RowParts& parts, size_t n0, size_t n1, size_t to) {
  for_parts(parts, n0, n1,
            [&](const kernels::PackedWeights& part, size_t from, size_t end, size_t base) {
              unpack(part, from, end, to + base + from - n0);
            });
}

void PlainMatrix::multiply(const void* a, size_t m, size_t a_stride, float* c, size_t c_stride,
                           bool accumulate) const {
  kernels::GemmShape shape;
  shape.m = m;
  shape.n = n_;
  shape.k = k_;
  shape.lda = a_stride;
  shape.ldw = k_;
  shape.ldc = c_stride;
  shape.type = element_ == 2 ? kernels::GemmType::kBf16 : kernels::GemmType::kF32;
  shape.accumulate = accumulate;
  kernels::cpu::gemm(shape, a, bytes_.data(), c);
}

}  // namespace varve::light
