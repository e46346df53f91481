// x is quantised to 16 bits per group of 32 inputs, q = 256 hi + lo with hi and lo in -128..127, so
// that one byte dot product instruction per digit multiplies it with the codes: integer sums are
// exact, and the only error is x's rounding, 2^-16 of its group's largest value. Twice as fast as
// f32 arithmetic where weights come from cache, and it leaves memory as the limit.
#include "kernels/cpu/matvec_vnni.h"

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

// A target attribute, not a compiler flag for the file: inline functions of the standard library
// must not be compiled for AVX-512.
#define VARVE_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c")))

namespace varve::kernels::cpu {
namespace {

constexpr size_t kGroup = 32;
constexpr size_t kRowsAtOnce =
    4;  // rows of x per pass over a panel, which stays in L1; 8 spill registers
constexpr float kQuantMax = 127 * 256 + 127;  // largest q whose two digits fit
constexpr float kTiny = 1e-30f;  // groups this small count as zero: 1 / step must be finite

// One group of 32 inputs of one row of x: one cache line of digits, then what the groups' ends
// need.
struct alignas(64) XGroup {
  int8_t high[kGroup], low[kGroup];
  int32_t sum_q[2];  // of each half
  float sum_x[2];
  float step;
};

VARVE_VNNI void quantise_group(const float* x, XGroup* out) {
  const __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
  const float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(x0), _mm512_abs_ps(x1)));
  out->sum_x[0] = _mm512_reduce_add_ps(x0);
  out->sum_x[1] = _mm512_reduce_add_ps(x1);
  // NaN and infinity survive in the step: the integer path would lose them.
  out->step = largest / kQuantMax + 0.0f * (out->sum_x[0] + out->sum_x[1]);
  const bool is_usable = std::isfinite(out->step) && largest > kTiny;
  const __m512 inverse = _mm512_set1_ps(is_usable ? kQuantMax / largest : 0.0f);
  const __m512 zero = _mm512_setzero_ps();
  const __m512 halves[2] = {is_usable ? x0 : zero, is_usable ? x1 : zero};
  for (int h = 0; h < 2; ++h) {
    const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(halves[h], inverse));
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
    const __m512i low = _mm512_sub_epi32(q, _mm512_slli_epi32(high, 8));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->high + 16 * h), _mm512_cvtepi32_epi8(high));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->low + 16 * h), _mm512_cvtepi32_epi8(low));
    out->sum_q[h] = _mm512_reduce_add_epi32(q);
  }
}

inline void prefetch(const void* at) {
  _mm_prefetch(static_cast<const char*>(at) + kPrefetchBytes, _MM_HINT_T0);
}

VARVE_VNNI inline __m512i broadcast4(const int8_t* bytes) {
  int32_t word;
  std::memcpy(&word, bytes, sizeof word);
  return _mm512_set1_epi32(word);
}

VARVE_VNNI inline __m512 load_f16(const uint16_t* in) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in)));
}

// Exact sums of code * digit over part of a group, for M rows of x and 16 rows of W.
template <size_t M>
struct Sums {
  __m512i high[M], low[M];
};

template <size_t M>
VARVE_VNNI inline void clear(Sums<M>& s) {
  for (size_t i = 0; i < M; ++i) s.high[i] = s.low[i] = _mm512_setzero_si512();
}

// Four consecutive inputs, starting at `at` in the group.
template <size_t M>
VARVE_VNNI inline void add4(Sums<M>& s, __m512i codes, const XGroup* x, size_t groups, size_t at) {
  for (size_t i = 0; i < M; ++i) {
    const XGroup& g = x[i * groups];
    s.high[i] = _mm512_dpbusd_epi32(s.high[i], codes, broadcast4(g.high + at));
    s.low[i] = _mm512_dpbusd_epi32(s.low[i], codes, broadcast4(g.low + at));
  }
}

VARVE_VNNI inline __m512i whole(__m512i high, __m512i low) {
  return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
}

template <size_t M>
VARVE_VNNI void panel_w4(const uint8_t* codes, const uint16_t* params, size_t groups,
                         const XGroup* x, __m512* total) {
  const __m512i nibble = _mm512_set1_epi8(15);
  for (size_t g = 0; g < groups; ++g) {
    Sums<M> s;
    clear(s);
    prefetch(params + g * 32);
    for (size_t j = 0; j < kGroup / 8; ++j) {
      prefetch(codes + (g * 4 + j) * 64);
      const __m512i both = _mm512_loadu_si512(codes + (g * 4 + j) * 64);
      add4(s, _mm512_and_si512(both, nibble), x + g, groups, 8 * j);
      add4(s, _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble), x + g, groups, 8 * j + 4);
    }
    const __m512 scale = load_f16(params + g * 32), min = load_f16(params + g * 32 + 16);
    for (size_t i = 0; i < M; ++i) {
      const XGroup& xg = x[i * groups + g];
      const __m512 sum = _mm512_cvtepi32_ps(whole(s.high[i], s.low[i]));
      total[i] = _mm512_fmadd_ps(_mm512_mul_ps(scale, _mm512_set1_ps(xg.step)), sum, total[i]);
      total[i] = _mm512_fmadd_ps(min, _mm512_set1_ps(xg.sum_x[0] + xg.sum_x[1]), total[i]);
    }
  }
}

// Parts: weight groups per 32 inputs, 1 or 2.
template <size_t M, size_t Parts, bool HasMin>
VARVE_VNNI void panel_w8(const uint8_t* codes, const uint16_t* params, size_t groups,
                         const XGroup* x, __m512* total) {
  constexpr size_t kWords = kGroup / 4 / Parts;
  for (size_t g = 0; g < groups; ++g) {
    for (size_t part = 0; part < Parts; ++part) {
      Sums<M> s;
      clear(s);
      for (size_t j = part * kWords; j < (part + 1) * kWords; ++j) {
        prefetch(codes + (g * 8 + j) * 64);
        add4(s, _mm512_loadu_si512(codes + (g * 8 + j) * 64), x + g, groups, 4 * j);
      }
      prefetch(params);
      const __m512 scale = load_f16(params);
      const __m512 min = HasMin ? load_f16(params + 16) : _mm512_setzero_ps();
      params += HasMin ? 32 : 16;
      for (size_t i = 0; i < M; ++i) {
        const XGroup& xg = x[i * groups + g];
        const int32_t sum_q = Parts == 2 ? xg.sum_q[part] : xg.sum_q[0] + xg.sum_q[1];
        // Codes are stored + 128.
        const __m512i biased = whole(s.high[i], s.low[i]);
        const __m512 sum =
            _mm512_cvtepi32_ps(_mm512_sub_epi32(biased, _mm512_set1_epi32(sum_q * 128)));
        total[i] = _mm512_fmadd_ps(_mm512_mul_ps(scale, _mm512_set1_ps(xg.step)), sum, total[i]);
        if (HasMin) {
          const float sum_x = Parts == 2 ? xg.sum_x[part] : xg.sum_x[0] + xg.sum_x[1];
          total[i] = _mm512_fmadd_ps(min, _mm512_set1_ps(sum_x), total[i]);
        }
      }
    }
  }
}

template <size_t M>
VARVE_VNNI void rows(const PackedWeights& w, const XGroup* x, float* y, size_t y_stride,
                     size_t panel) {
  __m512 total[M];
  for (size_t i = 0; i < M; ++i) total[i] = _mm512_setzero_ps();
  const size_t groups = w.k() / kGroup;
  const uint8_t* codes = w.codes(panel);
  const uint16_t* params = w.params(panel);
  if (w.format() == WeightFormat::kW4) {
    panel_w4<M>(codes, params, groups, x, total);
  } else if (w.group() == kGroup) {
    w.has_min() ? panel_w8<M, 1, true>(codes, params, groups, x, total)
                : panel_w8<M, 1, false>(codes, params, groups, x, total);
  } else {
    w.has_min() ? panel_w8<M, 2, true>(codes, params, groups, x, total)
                : panel_w8<M, 2, false>(codes, params, groups, x, total);
  }
  const size_t row0 = panel * kPanelRows;
  const size_t live = w.n() - row0 < kPanelRows ? w.n() - row0 : kPanelRows;
  const __mmask16 mask = static_cast<__mmask16>((1u << live) - 1u);
  for (size_t i = 0; i < M; ++i) _mm512_mask_storeu_ps(y + i * y_stride + row0, mask, total[i]);
}

using RowsFunction = void (*)(const PackedWeights&, const XGroup*, float*, size_t, size_t);
constexpr RowsFunction kRows[kRowsAtOnce + 1] = {nullptr, rows<1>, rows<2>, rows<3>, rows<4>};

}  // namespace

void matvec_vnni(const PackedWeights& w, const float* x, size_t m, size_t x_stride, float* y,
                 size_t y_stride, size_t n0, size_t n1) {
  const size_t groups = w.k() / kGroup;
  thread_local std::vector<XGroup> quantised;
  if (quantised.size() < groups * kRowsAtOnce) quantised.resize(groups * kRowsAtOnce);
  for (size_t first = 0; first < m; first += kRowsAtOnce) {
    const size_t count = m - first < kRowsAtOnce ? m - first : kRowsAtOnce;
    for (size_t i = 0; i < count; ++i) {
      for (size_t g = 0; g < groups; ++g) {
        quantise_group(x + (first + i) * x_stride + g * kGroup, &quantised[i * groups + g]);
      }
    }
    for (size_t row = n0; row < n1; row += kPanelRows) {
      kRows[count](w, quantised.data(), y + first * y_stride, y_stride, row / kPanelRows);
    }
  }
}

}  // namespace varve::kernels::cpu
