// attend_tile with AVX512-BF16 instructions: products of bf16 pairs summed in f32. Registers hold
// kRows x 32 logits, then outputs. Keys [head_dim / 2][32][2] and values [16][o_dim][2] are pairs
// already, as in the body of a bf16 page.
#include "kernels/cpu/attend_tile_bf16.h"

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/attend_tile_steps.h"

// Attributes, not compiler flags for the file: inline functions of the standard library must not be
// compiled for AVX-512. Lambdas need their own.
#define VARVE_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c"
#define VARVE_LAMBDA __attribute__((target(VARVE_TARGET)))
HWY_PUSH_ATTRIBUTES(VARVE_TARGET)

namespace varve::kernels::cpu::tile {
namespace {

constexpr size_t kRows = 12;
constexpr size_t kSlots = 4;
constexpr size_t kKeys = kSlots * kBlockTokens;  // row stride of logits and probabilities
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What one 512-bit vector of 16 pairs holds.
struct Pair {
  __m512 even, odd;
};

inline Pair split(__m512i pairs) {
  const __m512i odd = _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)), _mm512_castsi512_ps(odd)};
}

// Even in the lower halves of 32-bit lanes, odd in the upper ones; rounds to nearest even.
inline __m512i join(const Pair& pair) {
  const __m512i interleave =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(
      interleave, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(pair.odd, pair.even)));
}

inline __m512bh as_pairs(__m512i bits) { return reinterpret_cast<__m512bh>(bits); }

inline __m512bh broadcast(const uint16_t* pair) {
  int bits;
  std::memcpy(&bits, pair, sizeof bits);
  return as_pairs(_mm512_set1_epi32(bits));
}

// ---- pages

// Where unpack takes the pairs of channels (2 j, 2 j + 1) of 16 tokens from.
struct PairKeys {
  const uint8_t* pairs;  // body of a bf16 page
  __m512i load_pairs(size_t j, size_t t) const {
    return _mm512_loadu_si512(pairs + (j * kBlockTokens + t) * 4);
  }
  Pair load(size_t j, size_t t) const { return split(load_pairs(j, t)); }
};

struct FloatKeys {
  const float* rows;  // [head_dim][32]
  __m512i load_pairs(size_t j, size_t t) const { return join(load(j, t)); }
  Pair load(size_t j, size_t t) const {
    const float* row = rows + 2 * j * kBlockTokens + t;
    return {_mm512_load_ps(row), _mm512_load_ps(row + kBlockTokens)};
  }
};

struct CodeKeys {
  const uint8_t* codes;           // [head_dim][32]
  const float *low_ends, *steps;  // [head_dim]
  __m512i load_pairs(size_t j, size_t t) const { return join(load(j, t)); }
  Pair load(size_t j, size_t t) const { return {channel(2 * j, t), channel(2 * j + 1, t)}; }
  __m512 channel(size_t c, size_t t) const {
    const auto* at = reinterpret_cast<const __m128i*>(codes + c * kBlockTokens + t);
    const __m512 code = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128(at)));
    return _mm512_fmadd_ps(code, _mm512_set1_ps(steps[c]), _mm512_set1_ps(low_ends[c]));
  }
};

struct Angle {
  __m512 cos, sin;
};

// Turns (a, b) backwards.
inline void turn(const Angle& angle, __m512& a, __m512& b) {
  const __m512 x = _mm512_fmadd_ps(a, angle.cos, _mm512_mul_ps(b, angle.sin));
  b = _mm512_fmsub_ps(b, angle.cos, _mm512_mul_ps(a, angle.sin));
  a = x;
}

// Keys rotated by -32 * distance, as pairs; rotary_dim is a multiple of 4.
template <typename Keys>
void rotate_keys(const Work& w, const Keys& from, const KvPage& page, uint8_t* out) {
  const size_t half = w.rope->rotary_dim / 2;
  const int64_t distance = page.distance;
  const size_t row = static_cast<size_t>(distance < 0 ? -distance : distance) * half;
  const float *cos = w.rope->coarse_cos + row, *sin = w.rope->coarse_sin + row;
  const float sign = distance < 0 ? -1.0f : 1.0f;
  const auto angle = [&](size_t c) VARVE_LAMBDA -> Angle {
    return {_mm512_set1_ps(cos[c]), _mm512_set1_ps(sign * sin[c])};
  };
  for (size_t t = 0; t < kBlockTokens; t += 16) {
    const auto store = [&](size_t j, __m512i pairs) VARVE_LAMBDA {
      const auto live = static_cast<__mmask16>(page.live_mask >> t);
      _mm512_store_si512(out + (j * kBlockTokens + t) * 4, _mm512_maskz_mov_epi32(live, pairs));
    };
    for (size_t j = 0; j < half / 2; ++j) {
      Pair a = from.load(j, t), b = from.load(j + half / 2, t);
      turn(angle(2 * j), a.even, b.even);
      turn(angle(2 * j + 1), a.odd, b.odd);
      store(j, join(a));
      store(j + half / 2, join(b));
    }
    for (size_t j = half; j < w.head_dim / 2; ++j) store(j, from.load_pairs(j, t));
  }
}

// Clears the dead tokens of value pairs (t, t + 1).
inline __m512i live_halves(uint32_t live, size_t t) {
  const uint32_t low = live >> t & 1 ? 0xffffu : 0u, high = live >> t & 2 ? 0xffff0000u : 0u;
  return _mm512_set1_epi32(static_cast<int>(low | high));
}

// Calls fn(t, c, out) for 16 channels from c of every value pair (t, t + 1).
template <typename Fn>
inline void for_each_value_vector(const Work& w, uint8_t* out, Fn fn) {
  for (size_t first = 0; first < w.o_dim; first += w.v_width, out += w.v_block_bytes) {
    uint8_t* at = out;
    for (size_t t = 0; t < kBlockTokens; t += 2) {
      for (size_t c = 0; c < w.v_width; c += 16, at += 64) fn(t, first + c, at);
    }
  }
}

void copy_value_pairs(const Work& w, const KvPage& page, uint8_t* out) {
  const uint8_t* in = page.body + kBlockTokens * w.head_dim * 2;
  for_each_value_vector(w, out, [&](size_t t, size_t c, uint8_t* at) VARVE_LAMBDA {
    const size_t n = c < w.head_dim ? std::min<size_t>(16, w.head_dim - c) : 0;
    const auto used = static_cast<__mmask16>((1u << n) - 1);
    const __m512i pairs = _mm512_maskz_loadu_epi32(used, in + (t / 2 * w.head_dim + c) * 4);
    _mm512_store_si512(at, _mm512_and_si512(pairs, live_halves(page.live_mask, t)));
  });
}

void join_value_rows(const Work& w, const float* v, uint8_t* out) {
  for_each_value_vector(w, out, [&](size_t t, size_t c, uint8_t* at) VARVE_LAMBDA {
    const float* from = v + t * w.o_dim + c;
    _mm512_store_si512(at, join({_mm512_load_ps(from), _mm512_load_ps(from + w.o_dim)}));
  });
}

// n halves as floats; n is a multiple of 8.
void widen(const uint8_t* halves, size_t n, float* out) {
  for (size_t i = 0; i < n; i += 8) {
    const auto* at = reinterpret_cast<const __m128i*>(halves + 2 * i);
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(at)));
  }
}

// Two u64, four times each.
inline __m512i repeat4(const uint8_t* words) {
  const __m512i pair =
      _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words)));
  return _mm512_permutexvar_epi64(_mm512_set_epi64(1, 1, 1, 1, 0, 0, 0, 0), pair);
}

// Key codes of an int8 page as bytes, [head_dim][32]: two channels at once, eight tokens a lane.
void unpack_codes(const KvPage& page, size_t dim, uint8_t* codes) {
  const uint8_t *top = page.index + dim * 6, *mid = page.body, *low = page.body + dim * 8;
  const __m512i by_two = _mm512_set_epi64(6, 4, 2, 0, 6, 4, 2, 0);
  const __m512i by_four = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
  const __m512i twice = _mm512_set_epi64(3, 2, 3, 2, 1, 0, 1, 0);
  const __m512i two_bits = _mm512_set1_epi8(0x03), nibble = _mm512_set1_epi8(0x0f);
  for (size_t c = 0; c < dim; c += 2) {
    const __m512i t = _mm512_and_si512(_mm512_srlv_epi64(repeat4(top + c * 8), by_two), two_bits);
    const __m512i m = _mm512_and_si512(_mm512_srlv_epi64(repeat4(mid + c * 8), by_two), two_bits);
    const __m512i lows =
        _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low + c * 16)));
    const __m512i l =
        _mm512_and_si512(_mm512_srlv_epi64(_mm512_permutexvar_epi64(twice, lows), by_four), nibble);
    const __m512i high = _mm512_or_si512(_mm512_slli_epi64(t, 6), _mm512_slli_epi64(m, 4));
    _mm512_store_si512(codes + c * kBlockTokens, _mm512_or_si512(high, l));
  }
}

// Values of an int8 page; steps [32][channels / 32].
void join_value_codes(const Work& w, const KvPage& page, const float* steps, uint8_t* out) {
  const uint8_t* codes = page.body + 24 * w.head_dim;
  const size_t groups = (w.head_dim + 31) / 32;
  for_each_value_vector(w, out, [&](size_t t, size_t c, uint8_t* at) VARVE_LAMBDA {
    const size_t n = c < w.head_dim ? std::min<size_t>(16, w.head_dim - c) : 0;
    const auto used = static_cast<__mmask16>((1u << n) - 1);
    const auto row = [&](size_t token) VARVE_LAMBDA -> __m512 {
      const __m128i bytes = _mm_maskz_loadu_epi8(used, codes + token * w.head_dim + c);
      const float step = n > 0 ? steps[token * groups + c / 32] : 0.0f;
      return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), _mm512_set1_ps(step));
    };
    const __m512i pairs = join({row(t), row(t + 1)});
    _mm512_store_si512(at, _mm512_and_si512(pairs, live_halves(page.live_mask, t)));
  });
}

void unpack_int8(const Work& w, const KvPage& page, size_t slot) {
  float* low_ends = w.page;
  float* steps = low_ends + w.head_dim;
  float* value_steps = steps + w.head_dim;
  const size_t n_value_steps = kBlockTokens * ((w.head_dim + 31) / 32);
  auto* codes = reinterpret_cast<uint8_t*>(w.page + kBlockTokens * w.o_dim);
  widen(page.index, w.head_dim, low_ends);
  widen(page.index + 2 * w.head_dim, w.head_dim, steps);
  widen(page.body + (24 + kBlockTokens) * w.head_dim, n_value_steps, value_steps);
  unpack_codes(page, w.head_dim, codes);
  rotate_keys(w, CodeKeys{codes, low_ends, steps}, page, w.k[slot]);
  join_value_codes(w, page, value_steps, w.v[slot]);
}

// ---- blocks of rows

// Blocks become [head_dim / 2][kRows][2], so that the inner loop reads queries in a row.
void pack_queries(const Work& w) {
  for (size_t row = 0; row < w.rows; row += kRows) {
    const float* in = w.q + row * w.head_dim;
    uint16_t* out = w.q_packed + row * w.head_dim;
    for (size_t c = 0; c < w.head_dim; c += 2) {
      for (size_t r = 0; r < kRows; ++r, out += 2) {
        const __m128 pair =
            _mm_castpd_ps(_mm_load_sd(reinterpret_cast<const double*>(in + r * w.head_dim + c)));
        const __m128i rounded = reinterpret_cast<__m128i>(_mm_cvtneps_pbh(pair));
        _mm_storeu_si32(out, rounded);
      }
    }
  }
}

// s[r][t] = bias[t] + q[r] . k[t]
inline void score(const uint16_t* __restrict q, size_t dim, const uint8_t* __restrict k,
                  const float* __restrict bias, float* __restrict s) {
  __m512 a[kRows], b[kRows];
  for (size_t r = 0; r < kRows; ++r) {
    a[r] = _mm512_load_ps(bias);
    b[r] = _mm512_load_ps(bias + 16);
  }
  for (size_t j = 0; j < dim / 2; ++j, k += 128, q += 2 * kRows) {
    const __m512bh k0 = as_pairs(_mm512_load_si512(k)), k1 = as_pairs(_mm512_load_si512(k + 64));
    for (size_t r = 0; r < kRows; ++r) {
      const __m512bh x = broadcast(q + 2 * r);
      a[r] = _mm512_dpbf16_ps(a[r], x, k0);
      b[r] = _mm512_dpbf16_ps(b[r], x, k1);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    _mm512_store_ps(s + r * kKeys, a[r]);
    _mm512_store_ps(s + r * kKeys + 16, b[r]);
  }
}

// 2^x, relative error 1e-4, a twentieth of what rounding to bf16 costs; 0 for -inf.
inline __m512 exp2(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, 1);   // x - floor(x)
  __m512 p = _mm512_set1_ps(0.0780245227f);  // minimax on [0, 1]
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.226067155f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.695833541f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.999925219f));
  return _mm512_scalef_ps(p, x);
}

// Moves the maximum of a row and rescales what was summed so far.
[[gnu::noinline]] void raise_max(const Work& w, size_t row, float max) {
  const __m512 factor = exp2(_mm512_set1_ps(w.max[row] - max));
  w.max[row] = max;
  float* sum = w.sum + row * 16;
  _mm512_store_ps(sum, _mm512_mul_ps(_mm512_load_ps(sum), factor));
  float* o = w.o + row * w.o_dim;
  for (size_t c = 0; c < w.o_dim; c += 16) {
    _mm512_store_ps(o + c, _mm512_mul_ps(_mm512_load_ps(o + c), factor));
  }
}

// Logits of one row to probabilities.
inline void softmax_row(const Work& w, size_t row, const float* __restrict s,
                        uint16_t* __restrict p, size_t n) {
  __m512 top0 = _mm512_load_ps(s), top1 = _mm512_load_ps(s + 16);
  for (size_t t = 32; t < n; t += 32) {
    top0 = _mm512_max_ps(top0, _mm512_load_ps(s + t));
    top1 = _mm512_max_ps(top1, _mm512_load_ps(s + t + 16));
  }
  top0 = _mm512_max_ps(top0, top1);
  const __m512 limit = _mm512_set1_ps(w.max[row] + kMaxSlack);
  if (_mm512_cmp_ps_mask(top0, limit, _CMP_GT_OQ)) raise_max(w, row, _mm512_reduce_max_ps(top0));
  const __m512 base = _mm512_set1_ps(w.max[row] == -kInfinity ? 0.0f : w.max[row]);
  __m512 sum0 = _mm512_load_ps(w.sum + row * 16), sum1 = _mm512_setzero_ps();
  for (size_t t = 0; t < n; t += 32) {
    const __m512 p0 = exp2(_mm512_sub_ps(_mm512_load_ps(s + t), base));
    const __m512 p1 = exp2(_mm512_sub_ps(_mm512_load_ps(s + t + 16), base));
    sum0 = _mm512_add_ps(sum0, p0);
    sum1 = _mm512_add_ps(sum1, p1);
    _mm512_store_si512(p + t, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(p1, p0)));
  }
  _mm512_store_ps(w.sum + row * 16, _mm512_add_ps(sum0, sum1));
}

// o[r] += p[r] . v
inline void add_values(const Work& w, size_t row, size_t begin, size_t end) {
  for (size_t c = 0; c < w.o_dim; c += 32) {
    float* __restrict o = w.o + row * w.o_dim + c;
    __m512 a[kRows], b[kRows];
    for (size_t r = 0; r < kRows; ++r) {
      a[r] = _mm512_load_ps(o + r * w.o_dim);
      b[r] = _mm512_load_ps(o + r * w.o_dim + 16);
    }
    const uint16_t* __restrict p = w.p;
    for (size_t slot = begin; slot < end; ++slot) {
      const uint8_t* __restrict v = w.v[slot] + c * 4;
      for (size_t t = 0; t < kBlockTokens; t += 2, p += 2, v += w.o_dim * 4) {
        const __m512bh v0 = as_pairs(_mm512_load_si512(v));
        const __m512bh v1 = as_pairs(_mm512_load_si512(v + 64));
        for (size_t r = 0; r < kRows; ++r) {
          const __m512bh x = broadcast(p + r * kKeys);
          a[r] = _mm512_dpbf16_ps(a[r], x, v0);
          b[r] = _mm512_dpbf16_ps(b[r], x, v1);
        }
      }
    }
    for (size_t r = 0; r < kRows; ++r) {
      _mm512_store_ps(o + r * w.o_dim, a[r]);
      _mm512_store_ps(o + r * w.o_dim + 16, b[r]);
    }
  }
}

void update(const Work& w, size_t row, size_t begin, size_t end) {
  float* s = w.s;
  for (size_t slot = begin; slot < end; ++slot, s += kBlockTokens) {
    score(w.q_packed + row * w.head_dim, w.head_dim, w.k[slot], w.bias + slot * kBlockTokens, s);
    if (needs_mask(w, row, slot)) mask_later_keys(w, row, kRows, slot, s, kKeys);
  }
  for (size_t r = 0; r < kRows; ++r) {
    softmax_row(w, row + r, w.s + r * kKeys, w.p + r * kKeys, (end - begin) * kBlockTokens);
  }
  add_values(w, row, begin, end);
}

constexpr Steps kSteps{kRows, kSlots, sizeof(uint16_t), 0, pack_queries, bf16_unpack, update};

}  // namespace

void bf16_unpack(const Work& w, const KvPage& page, size_t slot) {
  switch (page.format) {
    case KvFormat::kBf16:
      rotate_keys(w, PairKeys{page.body}, page, w.k[slot]);
      copy_value_pairs(w, page, w.v[slot]);
      return;
    case KvFormat::kInt8:
      return unpack_int8(w, page, slot);
    case KvFormat::kF32: {
      float* v = w.page + kBlockTokens * w.o_dim;
      decode_page(page, w.head_dim, w.o_dim, w.page, v);
      rotate_keys(w, FloatKeys{w.page}, page, w.k[slot]);
      join_value_rows(w, v, w.v[slot]);
    }
  }
}

void bf16_round_queries(const Work& w) {
  for (size_t i = 0; i < w.rows * w.head_dim; i += 32) {
    const __m512 low = _mm512_load_ps(w.q + i), high = _mm512_load_ps(w.q + i + 16);
    _mm512_store_si512(w.q_packed + i, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
}

void bf16_softmax_row(const Work& w, size_t row, const float* s, uint16_t* p, size_t n) {
  softmax_row(w, row, s, p, n);
}

const Steps& bf16_steps() { return kSteps; }

}  // namespace varve::kernels::cpu::tile

HWY_POP_ATTRIBUTES
