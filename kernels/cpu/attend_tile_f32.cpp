// attend_tile in f32, for every CPU. Registers hold kRows x 2 vectors of logits, then of outputs.
#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/attend_tile_steps.h"
#include "kernels/number.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend_tile_f32.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace varve::kernels::cpu::tile {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

const hn::CappedTag<float, 16> df;
const hn::RebindToSigned<decltype(df)> di;
const hn::RebindToUnsigned<decltype(df)> du;
const hn::Rebind<uint8_t, decltype(df)> du8;
const hn::Rebind<int8_t, decltype(df)> di8;
using Vec = hn::Vec<decltype(df)>;

constexpr size_t kLanes = hn::MaxLanes(df);
constexpr size_t kRows = HWY_TARGET <= HWY_AVX3 ? 12 : 6;
constexpr size_t kSlots = 4;
constexpr size_t kKeys = kSlots * kBlockTokens;  // row stride of logits
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// 2^x for x <= kMaxSlack, relative error 1e-7; 0 below 2^-126.
HWY_INLINE Vec exp2(Vec x) {
  const auto in_range = hn::Ge(x, hn::Set(df, -126.0f));
  const Vec whole = hn::Round(hn::Max(x, hn::Set(df, -126.0f)));
  const Vec f = hn::Sub(hn::Max(x, hn::Set(df, -126.0f)), whole);
  Vec p = hn::Set(df, 0.0013276472f);  // minimax on [-0.5, 0.5]
  p = hn::MulAdd(p, f, hn::Set(df, 0.00967554133f));
  p = hn::MulAdd(p, f, hn::Set(df, 0.0555071327f));
  p = hn::MulAdd(p, f, hn::Set(df, 0.240221197f));
  p = hn::MulAdd(p, f, hn::Set(df, 0.693146967f));
  p = hn::MulAdd(p, f, hn::Set(df, 1.00000007f));
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(di, whole));
  const auto scaled = hn::BitCast(df, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenElseZero(in_range, scaled);
}

// ---- pages to f32

void decode_k_int8(const uint8_t* index, const uint8_t* body, size_t dim, float* k) {
  const auto* half = reinterpret_cast<const uint16_t*>(index);
  const uint8_t* top = index + dim * 6;
  const uint8_t* low = body + dim * 8;
  for (size_t c = 0; c < dim; ++c, k += kBlockTokens) {
    uint64_t bits[2], nibbles[2], codes[4];
    std::memcpy(&bits[0], top + c * 8, 8);
    std::memcpy(&bits[1], body + c * 8, 8);
    std::memcpy(nibbles, low + c * 16, 16);
    for (size_t g = 0; g < 4; ++g) {  // tokens 8 g to 8 g + 7, a byte each
      codes[g] = (bits[0] >> 2 * g & 0x0303030303030303u) << 6 |
                 (bits[1] >> 2 * g & 0x0303030303030303u) << 4 |
                 (nibbles[g % 2] >> (g / 2 * 4) & 0x0f0f0f0f0f0f0f0fu);
    }
    const Vec low_end = hn::Set(df, f32_from_f16(half[c]));
    const Vec step = hn::Set(df, f32_from_f16(half[dim + c]));
    for (size_t t = 0; t < kBlockTokens; t += kLanes) {
      const auto code = hn::LoadU(du8, reinterpret_cast<const uint8_t*>(codes) + t);
      const Vec value = hn::ConvertTo(df, hn::PromoteTo(di, code));
      hn::StoreU(hn::MulAdd(value, step, low_end), df, k + t);
    }
  }
}

void decode_v_int8(const uint8_t* body, size_t dim, size_t o_dim, float* v) {
  const auto* code = reinterpret_cast<const int8_t*>(body + dim * 24);
  const size_t groups = (dim + 31) / 32;
  const auto* step = reinterpret_cast<const uint16_t*>(code + kBlockTokens * dim);
  for (size_t t = 0; t < kBlockTokens; ++t, v += o_dim) {
    for (size_t g = 0; g < groups; ++g) {
      const float factor = f32_from_f16(step[t * groups + g]);
      const size_t end = std::min(dim, g * 32 + 32);
      size_t c = g * 32;
      for (; c + kLanes <= end; c += kLanes) {
        const auto wide = hn::PromoteTo(di, hn::LoadU(di8, code + t * dim + c));
        hn::StoreU(hn::Mul(hn::ConvertTo(df, wide), hn::Set(df, factor)), df, v + c);
      }
      for (; c < end; ++c) v[c] = factor * code[t * dim + c];
    }
  }
}

// 32 bf16 pairs to two rows of 32.
HWY_INLINE void split_pairs(const uint8_t* in, size_t n, float* even, float* odd) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto pairs = hn::LoadU(du, reinterpret_cast<const uint32_t*>(in) + i);
    hn::StoreU(hn::BitCast(df, hn::ShiftLeft<16>(pairs)), df, even + i);
    hn::StoreU(hn::BitCast(df, hn::And(pairs, hn::Set(du, 0xffff0000u))), df, odd + i);
  }
  for (; i < n; ++i) {
    uint32_t pair;
    std::memcpy(&pair, in + i * 4, 4);
    const uint32_t low = pair << 16, high = pair & 0xffff0000u;
    std::memcpy(even + i, &low, 4);
    std::memcpy(odd + i, &high, 4);
  }
}

void clear_dead(uint32_t live, size_t dim, size_t o_dim, float* k, float* v) {
  HWY_ALIGN uint32_t keep[kBlockTokens];
  for (size_t t = 0; t < kBlockTokens; ++t) {
    keep[t] = live >> t & 1 ? ~0u : 0u;
    if (!keep[t]) std::fill_n(v + t * o_dim, o_dim, 0.0f);
  }
  for (size_t i = 0; i < dim * kBlockTokens; i += kLanes) {
    const auto bits = hn::BitCast(du, hn::LoadU(df, k + i));
    hn::StoreU(hn::BitCast(df, hn::And(bits, hn::Load(du, keep + i % kBlockTokens))), df, k + i);
  }
}

void decode_page(const KvPage& page, size_t dim, size_t o_dim, float* k, float* v) {
  const uint8_t* body_v = page.body + kBlockTokens * dim * (page.format == KvFormat::kF32 ? 4 : 2);
  switch (page.format) {
    case KvFormat::kF32:
      std::memcpy(k, page.body, kBlockTokens * dim * 4);
      for (size_t t = 0; t < kBlockTokens; ++t) {
        std::memcpy(v + t * o_dim, body_v + t * dim * 4, dim * 4);
      }
      break;
    case KvFormat::kBf16:
      for (size_t c = 0; c < dim; c += 2) {
        float* row = k + c * kBlockTokens;
        split_pairs(page.body + c * kBlockTokens * 2, kBlockTokens, row, row + kBlockTokens);
      }
      for (size_t t = 0; t < kBlockTokens; t += 2) {
        split_pairs(body_v + t * dim * 2, dim, v + t * o_dim, v + (t + 1) * o_dim);
      }
      break;
    case KvFormat::kInt8:
      decode_k_int8(page.index, page.body, dim, k);
      decode_v_int8(page.body, dim, o_dim, v);
      break;
  }
  for (size_t t = 0; o_dim > dim && t < kBlockTokens; ++t) {
    std::fill(v + t * o_dim + dim, v + (t + 1) * o_dim, 0.0f);
  }
  if (page.live_mask != ~0u) clear_dead(page.live_mask, dim, o_dim, k, v);
}

// Rotates keys by -32 * distance: the mirror image of rotating the queries.
void rotate(const RopeTable& rope, int32_t distance, float* k) {
  if (distance == 0) return;
  const size_t half = rope.rotary_dim / 2;
  const size_t blocks = static_cast<size_t>(distance < 0 ? -int64_t{distance} : distance);
  const float sign = distance < 0 ? -1.0f : 1.0f;
  for (size_t c = 0; c < half; ++c) {
    const Vec cos = hn::Set(df, rope.coarse_cos[blocks * half + c]);
    const Vec sin = hn::Set(df, sign * rope.coarse_sin[blocks * half + c]);
    float* x = k + c * kBlockTokens;
    float* y = x + half * kBlockTokens;
    for (size_t t = 0; t < kBlockTokens; t += kLanes) {
      const Vec a = hn::Load(df, x + t), b = hn::Load(df, y + t);
      hn::Store(hn::MulAdd(a, cos, hn::Mul(b, sin)), df, x + t);
      hn::Store(hn::MulSub(b, cos, hn::Mul(a, sin)), df, y + t);
    }
  }
}

void unpack(const Work& w, const KvPage& page, size_t slot) {
  auto* k = reinterpret_cast<float*>(w.k[slot]);
  HWY_NAMESPACE::decode_page(page, w.head_dim, w.o_dim, k, reinterpret_cast<float*>(w.v[slot]));
  rotate(*w.rope, page.distance, k);
}

// ---- blocks of rows

// Blocks become [head_dim][kRows], so that the inner loop reads queries in a row.
void pack_queries(const Work& w) {
  for (size_t row = 0; row < w.rows; row += kRows) {
    float* block = w.q + row * w.head_dim;
    std::copy_n(block, kRows * w.head_dim, w.page);
    for (size_t c = 0; c < w.head_dim; ++c) {
      for (size_t r = 0; r < kRows; ++r) block[c * kRows + r] = w.page[r * w.head_dim + c];
    }
  }
}

// s[r][t] = bias[t] + q[r] . k[t]
HWY_INLINE void score(const float* HWY_RESTRICT q, size_t dim, const float* HWY_RESTRICT k,
                      const float* HWY_RESTRICT bias, float* HWY_RESTRICT s) {
  for (size_t t = 0; t < kBlockTokens; t += 2 * kLanes) {
    Vec a[kRows], b[kRows];
    for (size_t r = 0; r < kRows; ++r) {
      a[r] = hn::Load(df, bias + t);
      b[r] = hn::Load(df, bias + t + kLanes);
    }
    for (size_t c = 0; c < dim; ++c) {
      const Vec k0 = hn::Load(df, k + c * kBlockTokens + t);
      const Vec k1 = hn::Load(df, k + c * kBlockTokens + t + kLanes);
      for (size_t r = 0; r < kRows; ++r) {
        const Vec x = hn::Set(df, q[c * kRows + r]);
        a[r] = hn::MulAdd(x, k0, a[r]);
        b[r] = hn::MulAdd(x, k1, b[r]);
      }
    }
    for (size_t r = 0; r < kRows; ++r) {
      hn::Store(a[r], df, s + r * kKeys + t);
      hn::Store(b[r], df, s + r * kKeys + t + kLanes);
    }
  }
}

// Moves the maximum of a row and rescales what was summed so far.
HWY_NOINLINE void raise_max(const Work& w, size_t row, float max) {
  const Vec factor = exp2(hn::Set(df, w.max[row] - max));
  w.max[row] = max;
  for (size_t i = 0; i < 16; i += kLanes) {
    float* sum = w.sum + row * 16 + i;
    hn::Store(hn::Mul(hn::Load(df, sum), factor), df, sum);
  }
  for (size_t c = 0; c < w.o_dim; c += kLanes) {
    float* o = w.o + row * w.o_dim + c;
    hn::Store(hn::Mul(hn::Load(df, o), factor), df, o);
  }
}

// Logits of one row to probabilities.
HWY_INLINE void softmax_row(const Work& w, size_t row, float* HWY_RESTRICT s, size_t n) {
  Vec top = hn::Load(df, s);
  for (size_t t = kLanes; t < n; t += kLanes) top = hn::Max(top, hn::Load(df, s + t));
  if (!hn::AllFalse(df, hn::Gt(top, hn::Set(df, w.max[row] + kMaxSlack)))) {
    raise_max(w, row, hn::GetLane(hn::MaxOfLanes(df, top)));
  }
  const Vec base = hn::Set(df, w.max[row] == -kInfinity ? 0.0f : w.max[row]);
  Vec sum = hn::Load(df, w.sum + row * 16);
  for (size_t t = 0; t < n; t += kLanes) {
    const Vec p = exp2(hn::Sub(hn::Load(df, s + t), base));
    sum = hn::Add(sum, p);
    hn::Store(p, df, s + t);
  }
  hn::Store(sum, df, w.sum + row * 16);
}

// o[r] += p[r] . v
HWY_INLINE void add_values(const Work& w, size_t row, size_t begin, size_t end) {
  for (size_t c = 0; c < w.o_dim; c += 2 * kLanes) {
    float* HWY_RESTRICT o = w.o + row * w.o_dim + c;
    Vec a[kRows], b[kRows];
    for (size_t r = 0; r < kRows; ++r) {
      a[r] = hn::Load(df, o + r * w.o_dim);
      b[r] = hn::Load(df, o + r * w.o_dim + kLanes);
    }
    const float* HWY_RESTRICT p = w.s;
    for (size_t slot = begin; slot < end; ++slot) {
      const float* HWY_RESTRICT v = reinterpret_cast<const float*>(w.v[slot]) + c;
      for (size_t t = 0; t < kBlockTokens; ++t, ++p, v += w.o_dim) {
        const Vec v0 = hn::Load(df, v), v1 = hn::Load(df, v + kLanes);
        for (size_t r = 0; r < kRows; ++r) {
          const Vec x = hn::Set(df, p[r * kKeys]);
          a[r] = hn::MulAdd(x, v0, a[r]);
          b[r] = hn::MulAdd(x, v1, b[r]);
        }
      }
    }
    for (size_t r = 0; r < kRows; ++r) {
      hn::Store(a[r], df, o + r * w.o_dim);
      hn::Store(b[r], df, o + r * w.o_dim + kLanes);
    }
  }
}

void update(const Work& w, size_t row, size_t begin, size_t end) {
  float* s = w.s;
  for (size_t slot = begin; slot < end; ++slot, s += kBlockTokens) {
    score(w.q + row * w.head_dim, w.head_dim, reinterpret_cast<const float*>(w.k[slot]),
          w.bias + slot * kBlockTokens, s);
    if (needs_mask(w, row, slot)) mask_later_keys(w, row, kRows, slot, s, kKeys);
  }
  for (size_t r = 0; r < kRows; ++r) {
    softmax_row(w, row + r, w.s + r * kKeys, (end - begin) * kBlockTokens);
  }
  add_values(w, row, begin, end);
}

const Steps& steps() {
  static constexpr Steps kSteps{kRows, kSlots, sizeof(float), 0, pack_queries, unpack, update};
  return kSteps;
}

}  // namespace HWY_NAMESPACE
}  // namespace varve::kernels::cpu::tile
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace varve::kernels::cpu::tile {
HWY_EXPORT(steps);
HWY_EXPORT(decode_page);

const Steps& f32_steps() { return HWY_DYNAMIC_DISPATCH(steps)(); }

void decode_page(const KvPage& page, size_t head_dim, size_t o_dim, float* k, float* v) {
  HWY_DYNAMIC_DISPATCH(decode_page)(page, head_dim, o_dim, k, v);
}

}  // namespace varve::kernels::cpu::tile
#endif
