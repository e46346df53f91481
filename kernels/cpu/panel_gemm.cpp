// AVX512-BF16: registers hold kRows x 32 sums; a pair of panels is streamed once and meets all rows
// from the caches.
#include "kernels/panel_gemm.h"

#include <hwy/base.h>
#include <immintrin.h>

#include <array>
#include <cstring>
#include <utility>

#include "kernels/cpu_target.h"

// Attributes, not compiler flags for the file: inline functions of the standard library must not be
// compiled for AVX-512.
#define VARVE_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma"
HWY_PUSH_ATTRIBUTES(VARVE_TARGET)

namespace varve::kernels::cpu {
namespace {

constexpr size_t kRows = 12;
constexpr size_t kPairBytes = kPanelRows * 4;  // of a panel: one pair of inputs
constexpr size_t kAheadBytes = 2048;           // of each panel, asked for ahead of its use
constexpr size_t kPairs = 288;                 // of inputs at once: two panels stay in L1

inline __m512bh broadcast(const uint16_t* pair) {
  int bits;
  std::memcpy(&bits, pair, sizeof bits);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
}

// M rows of x and two panels.
struct Tile {
  const uint8_t* w0;
  const uint8_t* w1;
  __mmask16 columns0, columns1;
  size_t pairs;
  const uint16_t* x;
  size_t x_stride;
  float* y;
  size_t y_stride;
  bool accumulate;
};

template <size_t M>
void multiply(const Tile& tile) {
  const Tile t = tile;  // nothing that is written can change it
  __m512 a[M], b[M];
  for (size_t i = 0; i < M; ++i) {
    const float* y = t.y + i * t.y_stride;
    a[i] = t.accumulate ? _mm512_maskz_loadu_ps(t.columns0, y) : _mm512_setzero_ps();
    b[i] = t.accumulate ? _mm512_maskz_loadu_ps(t.columns1, y + kPanelRows) : _mm512_setzero_ps();
  }
  const uint8_t* __restrict w0 = t.w0;
  const uint8_t* __restrict w1 = t.w1;
  // Of three rows each: the others are one and two strides away, which an address can say.
  const uint16_t* __restrict rows[(M + 2) / 3];
  for (size_t i = 0; i < M; i += 3) rows[i / 3] = t.x + i * t.x_stride;
  for (size_t j = 0; j < t.pairs; ++j, w0 += kPairBytes, w1 += kPairBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(w0 + kAheadBytes), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(w1 + kAheadBytes), _MM_HINT_T0);
    const auto v0 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(w0));
    const auto v1 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(w1));
    for (size_t i = 0; i < M; ++i) {
      const __m512bh x = broadcast(rows[i / 3] + i % 3 * t.x_stride + 2 * j);
      a[i] = _mm512_dpbf16_ps(a[i], v0, x);
      b[i] = _mm512_dpbf16_ps(b[i], v1, x);
    }
  }
  for (size_t i = 0; i < M; ++i) {
    float* y = t.y + i * t.y_stride;
    _mm512_mask_storeu_ps(y, t.columns0, a[i]);
    _mm512_mask_storeu_ps(y + kPanelRows, t.columns1, b[i]);
  }
}

using Multiply = void (*)(const Tile&);

template <size_t... M>
constexpr std::array<Multiply, sizeof...(M)> multiplies(std::index_sequence<M...>) {
  return {multiply<M + 1>...};
}

__mmask16 columns_of(size_t n) {
  return static_cast<__mmask16>(n >= kPanelRows ? 0xffff : (1u << n) - 1);
}

using Multiplies = std::array<Multiply, kRows>;

// Two panels, from tile.w0 on, with all rows: in strips of inputs, in blocks of nearly equal
// height.
void multiply_rows(Tile t, const uint16_t* x, size_t m, float* y, size_t pairs) {
  static constexpr Multiplies kMultiply = multiplies(std::make_index_sequence<kRows>());
  const size_t strips = (pairs + kPairs - 1) / kPairs, blocks = (m + kRows - 1) / kRows;
  for (size_t s = 0; s < strips; ++s) {
    const size_t from = pairs * s / strips;
    t.pairs = pairs * (s + 1) / strips - from;
    for (size_t b = 0; b < blocks; ++b) {
      const size_t first = m * b / blocks, end = m * (b + 1) / blocks;
      t.x = x + first * t.x_stride + 2 * from;
      t.y = y + first * t.y_stride;
      kMultiply[end - first - 1](t);
    }
    t.w0 += t.pairs * kPairBytes;
    t.w1 += t.pairs * kPairBytes;
    t.accumulate = true;
  }
}

void run(const PackedWeights& w, const uint16_t* x, size_t m, size_t x_stride, float* y,
         size_t y_stride, size_t n0, size_t n1, bool accumulate) {
  Tile t{};
  t.x_stride = x_stride;
  t.y_stride = y_stride;
  for (size_t n = n0; n < n1; n += 2 * kPanelRows) {
    const size_t panel = n / kPanelRows, left = n1 - n;
    const bool two = left > kPanelRows;
    t.w0 = w.codes(panel);
    t.w1 = two ? w.codes(panel + 1) : t.w0;
    t.columns0 = columns_of(left);
    t.columns1 = two ? columns_of(left - kPanelRows) : __mmask16{0};
    t.accumulate = accumulate;
    multiply_rows(t, x, m, y + n - n0, w.k() / 2);
  }
}

}  // namespace

bool has_panel_gemm() {
  return cpu_target() == CpuTarget::kAvx512Vnni && cpu_features().avx512_bf16;
}

void panel_gemm(const PackedWeights& w, const uint16_t* x, size_t m, size_t x_stride, float* y,
                size_t y_stride, size_t n0, size_t n1, bool accumulate) {
  if (!has_panel_gemm() || w.k() % 2 != 0)
    return ref::panel_gemm(w, x, m, x_stride, y, y_stride, n0, n1, accumulate);
  if (m > 0) run(w, x, m, x_stride, y, y_stride, n0, n1, accumulate);
}

}  // namespace varve::kernels::cpu
HWY_POP_ATTRIBUTES
