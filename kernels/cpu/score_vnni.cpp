// The logit of token t is sum_c q_c (k_min_c + 127.5 k_step_c) + sum_c w_c (code_ct - 1.5), with
// w_c = 64 q_c k_step_c and codes 0..3. w is rounded to bytes for a byte dot product with the
// codes. Codes are taken about their middle so that the error does not grow with their mean.
#include "kernels/cpu/score_vnni.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu_target.h"
#include "kernels/page.h"

// A target attribute, not a compiler flag for the file: inline functions of the standard library
// must not be compiled for AVX-512.
#define VARVE_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c")))

namespace varve::kernels::cpu {
namespace {

constexpr size_t kRowsAtOnce = 4, kMaxHeadDim = 256, kLanes = 16;
constexpr float kLog2E = 1.44269504f;
constexpr float kTiny = 1e-30f;  // 127 / kTiny is finite

// Rows are padded with zeros to whole vectors of bytes.
constexpr size_t row_stride(size_t head_dim) { return (head_dim + 63) / 64 * 64; }

// Rows of queries folded with an index: the logit of a token is base + sum_c weights_c (code_c -
// 1.5), and every |weight| <= largest.
struct alignas(64) FoldedRows {
  float weights[kRowsAtOnce * kMaxHeadDim];  // [rows][row_stride(head_dim)]
  float base[kRowsAtOnce][kLanes];           // in parts to be added
  float largest[kRowsAtOnce];
};

VARVE_VNNI inline __m512 load_f16(const uint8_t* halves, size_t i) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves + 2 * i)));
}

struct Add {
  VARVE_VNNI __m512 operator()(__m512 a, __m512 b) const { return _mm512_add_ps(a, b); }
};

struct Max {
  VARVE_VNNI __m512 operator()(__m512 a, __m512 b) const { return _mm512_max_ps(a, b); }
};

// Lane r: the lanes of v[r] taken together by op.
template <class Op>
VARVE_VNNI inline __m128 reduce_rows(Op op, const __m512* v) {
  const __m512d ab =
      _mm512_castps_pd(op(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1])));
  const __m512d cd =
      _mm512_castps_pd(op(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3])));
  __m512 all = op(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                  _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  all = op(all, _mm512_shuffle_f32x4(all, all, 0b01'00'11'10));
  return _mm512_castps512_ps128(op(all, _mm512_shuffle_f32x4(all, all, 0b10'11'00'01)));
}

// 16 channels of an index: the middle of the codes, and the width of a code.
struct Channels {
  __m512 middle, bucket;
  VARVE_VNNI Channels(const uint8_t* index, size_t head_dim, size_t c) {
    const __m512 step = load_f16(index, head_dim + c);
    bucket = _mm512_mul_ps(step, _mm512_set1_ps(64.0f));
    middle = _mm512_fmadd_ps(step, _mm512_set1_ps(127.5f), load_f16(index, c));
  }
};

VARVE_VNNI inline __m512 larger_magnitude(__m512 a, __m512 b) {
  constexpr int kMaxOfMagnitudes = 0b1011;
  return _mm512_range_ps(a, b, kMaxOfMagnitudes);
}

template <size_t kRows>
VARVE_VNNI inline void fold(const RopeTable& rope, const KvPage& page, const float* q,
                            FoldedRows& out) {
  const size_t n = rope.head_dim, half = n / 2;
  const size_t angle = static_cast<size_t>(std::abs(page.distance)) * half;
  const __m512 sign = _mm512_set1_ps(page.distance < 0 ? -1.0f : 1.0f);
  __m512 base[kRowsAtOnce], largest[kRowsAtOnce];
  for (size_t r = 0; r < kRowsAtOnce; ++r) {
    base[r] = _mm512_setzero_ps();
    largest[r] = _mm512_set1_ps(kTiny);
  }
  for (size_t c = 0; c < half; c += kLanes) {
    const __m512 cos = _mm512_loadu_ps(rope.coarse_cos + angle + c);
    const __m512 sin = _mm512_mul_ps(_mm512_loadu_ps(rope.coarse_sin + angle + c), sign);
    const Channels first(page.index, n, c), second(page.index, n, half + c);
    for (size_t r = 0; r < kRows; ++r) {
      const __m512 a = _mm512_loadu_ps(q + r * n + c), b = _mm512_loadu_ps(q + r * n + half + c);
      const __m512 x = _mm512_fnmadd_ps(b, sin, _mm512_mul_ps(a, cos));
      const __m512 y = _mm512_fmadd_ps(a, sin, _mm512_mul_ps(b, cos));
      const __m512 wx = _mm512_mul_ps(x, first.bucket), wy = _mm512_mul_ps(y, second.bucket);
      base[r] = _mm512_fmadd_ps(y, second.middle, _mm512_fmadd_ps(x, first.middle, base[r]));
      largest[r] = larger_magnitude(largest[r], larger_magnitude(wx, wy));
      _mm512_store_ps(out.weights + r * row_stride(n) + c, wx);
      _mm512_storeu_ps(out.weights + r * row_stride(n) + half + c, wy);
    }
  }
  for (size_t r = 0; r < kRows && n < row_stride(n); ++r) {
    std::fill(out.weights + r * row_stride(n) + n, out.weights + (r + 1) * row_stride(n), 0.0f);
  }
  for (size_t r = 0; r < kRows; ++r) _mm512_store_ps(out.base[r], base[r]);
  _mm_store_ps(out.largest, reduce_rows(Max(), largest));
}

VARVE_VNNI inline __m512i broadcast4(const int8_t* bytes) {
  int32_t word;
  std::memcpy(&word, bytes, sizeof word);
  return _mm512_set1_epi32(word);
}

VARVE_VNNI inline __m512i two_halves(int32_t low, int32_t high) {
  return _mm512_inserti64x4(_mm512_set1_epi32(low), _mm256_set1_epi32(high), 1);
}

VARVE_VNNI inline __m512 two_halves(float low, float high) {
  return _mm512_insertf32x8(_mm512_set1_ps(low), _mm256_set1_ps(high), 1);
}

// Rows of queries as bytes: the logit is base + unit * sum_c bytes_c code_c.
struct alignas(64) ByteRows {
  int8_t bytes[kRowsAtOnce * kMaxHeadDim];  // [rows][row_stride(head_dim)]
  float base[kRowsAtOnce], unit[kRowsAtOnce];
};

VARVE_VNNI inline __m512i round_16(const float* weights, __m512 to_byte) {
  return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(weights), to_byte));
}

template <size_t kRows>
VARVE_VNNI inline void quantise(const FoldedRows& rows, size_t head_dim, ByteRows& out) {
  const __m512i unpacked = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m128 largest = _mm_load_ps(rows.largest);
  _mm_store_ps(out.unit, _mm_mul_ps(largest, _mm_set1_ps(1.0f / 127.0f)));
  alignas(16) float inverse[kRowsAtOnce];
  _mm_store_ps(inverse, _mm_div_ps(_mm_set1_ps(127.0f), largest));
  __m512 base[kRowsAtOnce];
  for (auto& x : base) x = _mm512_setzero_ps();
  for (size_t r = 0; r < kRows; ++r) {
    const __m512 to_byte = _mm512_set1_ps(inverse[r]);
    __m512i sum_bytes = _mm512_setzero_si512();
    for (size_t c = r * row_stride(head_dim); c < (r + 1) * row_stride(head_dim); c += 64) {
      const float* from = rows.weights + c;
      const __m512i ab = _mm512_packs_epi32(round_16(from, to_byte), round_16(from + 16, to_byte));
      const __m512i cd =
          _mm512_packs_epi32(round_16(from + 32, to_byte), round_16(from + 48, to_byte));
      const __m512i bytes = _mm512_permutexvar_epi32(unpacked, _mm512_packs_epi16(ab, cd));
      sum_bytes = _mm512_dpbusd_epi32(sum_bytes, _mm512_set1_epi8(1), bytes);
      _mm512_store_si512(out.bytes + c, bytes);
    }
    base[r] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(sum_bytes), _mm512_set1_ps(1.5f * out.unit[r]),
                               _mm512_load_ps(rows.base[r]));
  }
  _mm_store_ps(out.base, reduce_rows(Add(), base));
}

// The order that makes of 8 channels, paired by bytes, the words of the first four: 8 tokens of 4
// channels, twice.
VARVE_VNNI inline __m512i words_of_four() {
  const __m512i low = _mm512_set4_epi32(0x000b0003, 0x000a0002, 0x00090001, 0x00080000);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(4));
  return _mm512_mask_blend_epi32(0xf0f0, low, high);
}

// As _mm512_dpbusd_epi32, with which gcc 12 copies every sum twice per turn of the loop below; that
// costs a tenth of all time here.
VARVE_VNNI inline void add_product(__m512i& sum, __m512i codes, __m512i q) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(q));
}

// sums [kRows][32] of bytes * code. A code stays where it lies in its byte, and counts 1, 4, 16 or
// 64 times.
template <size_t kRows>
VARVE_VNNI inline void dot(const uint8_t* planes, const int8_t* bytes, size_t head_dim,
                           __m512i* sum0, __m512i* sum1) {
  const __m512i pairs =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  const __m512i first = words_of_four();
  const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
  const __m512i mask0 = two_halves(0x03030303, 0x0c0c0c0c);
  const __m512i mask1 = _mm512_slli_epi32(mask0, 4);
  __m512i more0[kRows], more1[kRows];  // more chains of sums, to hide their latency
  for (size_t r = 0; r < kRows; ++r) {
    sum0[r] = sum1[r] = more0[r] = more1[r] = _mm512_setzero_si512();
  }
  for (size_t c = 0; c < head_dim; c += 8) {
    const __m512i words = _mm512_shuffle_epi8(_mm512_loadu_si512(planes + 8 * c), pairs);
    const __m512i a = _mm512_permutexvar_epi16(first, words);
    const __m512i b = _mm512_permutexvar_epi16(second, words);
    const __m512i a0 = _mm512_and_si512(a, mask0), a1 = _mm512_and_si512(a, mask1);
    const __m512i b0 = _mm512_and_si512(b, mask0), b1 = _mm512_and_si512(b, mask1);
    for (size_t r = 0; r < kRows; ++r) {
      const int8_t* q = bytes + r * row_stride(head_dim) + c;
      const __m512i qa = broadcast4(q), qb = broadcast4(q + 4);
      add_product(sum0[r], a0, qa);
      add_product(sum1[r], a1, qa);
      add_product(more0[r], b0, qb);
      add_product(more1[r], b1, qb);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    sum0[r] = _mm512_add_epi32(sum0[r], more0[r]);
    sum1[r] = _mm512_add_epi32(sum1[r], more1[r]);
  }
}

// The logits of rows, -inf where a token is not live, and the largest of each row.
struct alignas(64) Logits {
  float all[kRowsAtOnce][kBlockTokens];
  float largest[kRowsAtOnce];
};

template <size_t kRows>
VARVE_VNNI inline void sketch_logits(const KvPage& page, const ByteRows& rows, size_t head_dim,
                                     Logits& out) {
  __m512i sum0[kRows], sum1[kRows];
  dot<kRows>(page.index + 6 * head_dim, rows.bytes, head_dim, sum0, sum1);
  const __m512 unit0 = two_halves(1.0f, 1.0f / 4), unit1 = two_halves(1.0f / 16, 1.0f / 64);
  const __m512 none = _mm512_set1_ps(-INFINITY);
  const auto live0 = static_cast<__mmask16>(page.live_mask);
  const auto live1 = static_cast<__mmask16>(page.live_mask >> 16);
  __m512 largest[kRowsAtOnce];
  for (auto& x : largest) x = none;
  for (size_t r = 0; r < kRows; ++r) {
    const __m512 base = _mm512_set1_ps(rows.base[r]), unit = _mm512_set1_ps(rows.unit[r]);
    const __m512 logits0 =
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum0[r]), _mm512_mul_ps(unit, unit0), base);
    const __m512 logits1 =
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum1[r]), _mm512_mul_ps(unit, unit1), base);
    const __m512 masked0 = _mm512_mask_mov_ps(none, live0, logits0);
    const __m512 masked1 = _mm512_mask_mov_ps(none, live1, logits1);
    _mm512_store_ps(out.all[r], masked0);
    _mm512_store_ps(out.all[r] + kLanes, masked1);
    largest[r] = _mm512_max_ps(masked0, masked1);
  }
  _mm_store_ps(out.largest, reduce_rows(Max(), largest));
}

// 2^x within 8e-5 of it; 0 for -inf. The polynomial is minimax for 0..1.
VARVE_VNNI inline __m512 exp2(__m512 x) {
  constexpr int kFractionAboveFloor = 0x09;
  const __m512 r = _mm512_reduce_ps(x, kFractionAboveFloor);
  __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(7.802452269e-2f), _mm512_set1_ps(2.260671554e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.958335405e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.999252186e-1f));
  return _mm512_scalef_ps(p, x);
}

// Lane r: the sum of 2^(x - largest) over the logits of row r.
template <size_t kRows>
VARVE_VNNI inline __m128 exponential_sums(const Logits& logits) {
  __m512 sum[kRowsAtOnce];
  for (auto& x : sum) x = _mm512_setzero_ps();
  for (size_t r = 0; r < kRows; ++r) {
    const __m512 top = _mm512_set1_ps(logits.largest[r]);
    const __m512 low = _mm512_load_ps(logits.all[r]);
    const __m512 high = _mm512_load_ps(logits.all[r] + kLanes);
    sum[r] = _mm512_add_ps(exp2(_mm512_sub_ps(low, top)), exp2(_mm512_sub_ps(high, top)));
  }
  return reduce_rows(Add(), sum);
}

template <size_t kRows>
VARVE_VNNI void row_masses(const RopeTable& rope, const KvPage* pages, size_t n_pages,
                           const float* q, float* exponent, float* factor, size_t stride) {
  FoldedRows folded[kSketchVnniPages];
  ByteRows bytes[kSketchVnniPages];
  Logits logits[kSketchVnniPages];
  // Four passes: one page's steps wait for each other, those of several pages overlap.
  for (size_t p = 0; p < n_pages; ++p) {
    if (pages[p].live_mask != 0) fold<kRows>(rope, pages[p], q, folded[p]);
  }
  for (size_t p = 0; p < n_pages; ++p) {
    if (pages[p].live_mask != 0) quantise<kRows>(folded[p], rope.head_dim, bytes[p]);
  }
  for (size_t p = 0; p < n_pages; ++p) {
    if (pages[p].live_mask == 0) continue;
    sketch_logits<kRows>(pages[p], bytes[p], rope.head_dim, logits[p]);
  }
  for (size_t p = 0; p < n_pages; ++p) {
    if (pages[p].live_mask == 0) continue;
    alignas(16) float sum[kRowsAtOnce];
    _mm_store_ps(sum, exponential_sums<kRows>(logits[p]));
    for (size_t r = 0; r < kRows; ++r) {
      exponent[r * stride + p] = logits[p].largest[r] + pages[p].log_weight * kLog2E;
      factor[r * stride + p] = sum[r];
    }
  }
}

}  // namespace

bool sketch_vnni_takes(const RopeTable& rope) {
  return cpu_target() == CpuTarget::kAvx512Vnni && rope.rotary_dim == rope.head_dim &&
         rope.head_dim % 32 == 0 && rope.head_dim <= kMaxHeadDim;
}

void sketch_masses_vnni(const RopeTable& rope, const KvPage* pages, size_t n_pages, const float* q,
                        size_t rows, float* exponent, float* factor, size_t stride) {
  using Function = decltype(row_masses<1>)*;
  constexpr Function kFunctions[] = {row_masses<1>, row_masses<2>, row_masses<3>, row_masses<4>};
  for (size_t r = 0; r < rows; r += kRowsAtOnce) {
    const size_t n = rows - r < kRowsAtOnce ? rows - r : kRowsAtOnce;
    kFunctions[n - 1](rope, pages, n_pages, q + r * rope.head_dim, exponent + r * stride,
                      factor + r * stride, stride);
  }
}

}  // namespace varve::kernels::cpu
