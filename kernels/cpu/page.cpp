#include "kernels/page.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/number.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/page.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "kernels/cpu/page-inl.h"

HWY_BEFORE_NAMESPACE();
namespace varve::kernels::HWY_NAMESPACE {

template <class D>
using IntOf = hn::RebindToSigned<D>;
template <class D>
using WordOf = hn::RebindToUnsigned<D>;

// |x| <= 65504 as f16 bits in the low half of each lane, to nearest even.
template <class D>
HWY_INLINE hn::Vec<WordOf<D>> to_f16(D d, hn::Vec<D> x) {
  const WordOf<D> du;
  const auto limit = hn::Set(d, 65504.0f);
  const auto bits = hn::BitCast(du, hn::Clamp(x, hn::Neg(limit), limit));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const auto sign = hn::ShiftRight<16>(hn::AndNot(hn::Set(du, 0x7fffffffu), bits));
  // Adding 0.5 leaves a subnormal f16 in the low mantissa bits.
  const auto aligned = hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f)));
  const auto subnormal = hn::Sub(aligned, hn::Set(du, 0x3f000000u));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
  const auto rebased = hn::Sub(magnitude, hn::Set(du, 0x38000000u - 0xfffu));
  const auto normal = hn::ShiftRight<13>(hn::Add(rebased, odd));
  const auto is_normal =
      hn::RebindMask(du, hn::Ge(hn::BitCast(d, magnitude), hn::Set(d, 0x1p-14f)));
  return hn::Or(sign, hn::IfThenElse(is_normal, normal, subnormal));
}

template <class D>
HWY_INLINE hn::Vec<D> from_f16(D d, hn::Vec<WordOf<D>> half) {
  const WordOf<D> du;
  const auto magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(du, 0x7fffu)));
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000u)));
  const auto scaled = hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f));
  return hn::Or(scaled, hn::BitCast(d, sign));
}

// The f16 numbers around x: the largest not above it, and the smallest not below it if x >= 0.
template <class D>
HWY_INLINE hn::Vec<WordOf<D>> f16_below(D d, hn::Vec<D> x) {
  const WordOf<D> du;
  const auto h = to_f16(d, x);
  const auto too_large = hn::RebindMask(du, hn::Gt(from_f16(d, h), x));
  const auto is_lowest = hn::Eq(h, hn::Set(du, 0xfbffu));
  const auto negative = hn::Ne(hn::And(h, hn::Set(du, 0x8000u)), hn::Zero(du));
  const auto one = hn::Set(du, 1);
  auto next = hn::IfThenElse(negative, hn::Add(h, one), hn::Sub(h, one));
  next = hn::IfThenElse(hn::Eq(h, hn::Zero(du)), hn::Set(du, 0x8001u), next);
  return hn::IfThenElse(hn::AndNot(is_lowest, too_large), next, h);
}

template <class D>
HWY_INLINE hn::Vec<WordOf<D>> f16_above(D d, hn::Vec<D> x) {
  const WordOf<D> du;
  const auto h = to_f16(d, x);
  const auto too_small = hn::RebindMask(du, hn::Lt(from_f16(d, h), x));
  const auto is_largest = hn::Eq(h, hn::Set(du, 0x7bffu));
  return hn::IfThenElse(hn::AndNot(is_largest, too_small), hn::Add(h, hn::Set(du, 1)), h);
}

template <class D>
HWY_INLINE void store_halves(D, hn::Vec<WordOf<D>> halves, uint8_t* to, size_t i) {
  const hn::Rebind<uint16_t, D> dh;
  const hn::Rebind<int32_t, D> di;
  hn::StoreU(hn::DemoteTo(dh, hn::BitCast(di, halves)), dh, reinterpret_cast<uint16_t*>(to) + i);
}

// 8-bit codes of the keys of one channel vector.
template <class D>
struct Coder {
  hn::Vec<D> k_min, inverse;
  HWY_INLINE Coder(D d, hn::Vec<D> min, hn::Vec<D> step) : k_min(min) {
    const auto positive = hn::Gt(step, hn::Zero(d));
    const auto divisor = hn::IfThenElse(positive, step, hn::Set(d, 1.0f));
    inverse = hn::IfThenElseZero(positive, hn::Div(hn::Set(d, 1.0f), divisor));
  }
  HWY_INLINE hn::Vec<WordOf<D>> code(D d, hn::Vec<D> k) const {
    const auto x = hn::Mul(hn::Sub(k, k_min), inverse);
    // Max first, with the constant last: so NaN ends as a number on every target.
    const auto clamped = hn::Min(hn::IfThenElseZero(hn::Gt(x, hn::Zero(d)), x), hn::Set(d, 255.0f));
    return hn::BitCast(WordOf<D>(), hn::NearestInt(clamped));
  }
};

template <class D>
HWY_INLINE void index_channels(D d, const float* k, uint32_t live_mask, size_t head_dim, size_t c,
                               uint8_t* index) {
  const WordOf<D> du;
  auto low = hn::Set(d, INFINITY), high = hn::Set(d, -INFINITY);
  for (uint32_t live = live_mask; live != 0; live &= live - 1) {
    const auto x = hn::LoadU(d, k + std::countr_zero(live) * head_dim + c);
    low = hn::Min(low, x);
    high = hn::Max(high, x);
  }
  const auto varies = hn::RebindMask(du, hn::Lt(low, high));
  const auto min_bits = hn::IfThenElse(varies, f16_below(d, low), to_f16(d, low));
  const auto k_min = from_f16(d, min_bits);
  const auto span = hn::Div(hn::Sub(high, k_min), hn::Set(d, 255.0f));
  const auto step_bits = hn::IfThenElseZero(varies, f16_above(d, span));
  const auto k_step = from_f16(d, step_bits);
  const auto centre = hn::Add(k_min, hn::Mul(hn::Set(d, 127.5f), k_step));
  const Coder<D> coder(d, k_min, k_step);
  auto distance = hn::Zero(d);
  auto plane0 = hn::Zero(du), plane1 = hn::Zero(du);  // tokens 8 g + 0..3 and 8 g + 4..7
  for (uint32_t live = live_mask; live != 0; live &= live - 1) {
    const int t = std::countr_zero(live);
    const auto x = hn::LoadU(d, k + static_cast<size_t>(t) * head_dim + c);
    distance = hn::Add(distance, hn::Abs(hn::Sub(x, centre)));
    const auto top =
        hn::ShiftLeftSame(hn::ShiftRight<6>(coder.code(d, x)), 8 * (t % 4) + 2 * (t / 8));
    if (t % 8 < 4) {
      plane0 = hn::Or(plane0, top);
    } else {
      plane1 = hn::Or(plane1, top);
    }
  }
  const auto n_live = hn::Set(d, static_cast<float>(std::popcount(live_mask)));
  store_halves(d, min_bits, index, c);
  store_halves(d, step_bits, index, head_dim + c);
  store_halves(d, to_f16(d, hn::Div(distance, n_live)), index, 2 * head_dim + c);
  hn::StoreInterleaved2(plane0, plane1, du,
                        reinterpret_cast<uint32_t*>(index + 6 * head_dim) + 2 * c);
}

void make_index(const float* k, uint32_t live_mask, size_t head_dim, uint8_t* index) {
  const size_t used = live_mask == 0 ? 0 : 14 * head_dim;
  std::memset(index + used, 0, index_bytes(head_dim) - used);
  if (live_mask == 0) return;
  with_channel_tag(head_dim, [&](auto d) {
    for (size_t c = 0; c < head_dim; c += hn::Lanes(d)) {
      index_channels(d, k, live_mask, head_dim, c, index);
    }
  });
}

template <class D>
HWY_INLINE void encode_key_codes(D d, const float* k, size_t head_dim, size_t c,
                                 const uint8_t* index, uint8_t* body) {
  const WordOf<D> du;
  const Coder<D> coder(d, load_f16(d, index, c), load_f16(d, index, head_dim + c));
  hn::Vec<WordOf<D>> mid[2] = {hn::Zero(du), hn::Zero(du)};
  hn::Vec<WordOf<D>> low[4] = {hn::Zero(du), hn::Zero(du), hn::Zero(du), hn::Zero(du)};
  for (size_t t = 0; t < kBlockTokens; ++t) {
    const auto code = coder.code(d, hn::LoadU(d, k + t * head_dim + c));
    const int byte = static_cast<int>(8 * (t % 4)), group = static_cast<int>(t / 8);
    const auto middle = hn::And(hn::ShiftRight<4>(code), hn::Set(du, 3));
    const auto lower = hn::And(code, hn::Set(du, 15));
    auto& mid_word = mid[t % 8 / 4];
    auto& low_word = low[t % 16 / 4];
    mid_word = hn::Or(mid_word, hn::ShiftLeftSame(middle, byte + 2 * group));
    low_word = hn::Or(low_word, hn::ShiftLeftSame(lower, byte + (t < 16 ? 0 : 4)));
  }
  auto* words = reinterpret_cast<uint32_t*>(body);
  hn::StoreInterleaved2(mid[0], mid[1], du, words + 2 * c);
  hn::StoreInterleaved4(low[0], low[1], low[2], low[3], du, words + 2 * head_dim + 4 * c);
}

template <class D>
HWY_INLINE void encode_value_codes(D d, const float* v, size_t n, uint8_t* step, int8_t* codes) {
  auto largest = hn::Zero(d);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    largest = hn::Max(hn::Abs(hn::LoadU(d, v + i)), largest);
  }
  const auto half = f16_above(d, hn::Div(hn::MaxOfLanes(d, largest), hn::Set(d, 127.0f)));
  const auto bits = static_cast<uint16_t>(hn::GetLane(half));
  std::memcpy(step, &bits, sizeof bits);
  const auto inverse = hn::Set(d, bits > 0 ? 1.0f / hn::GetLane(from_f16(d, half)) : 0.0f);
  const hn::Rebind<int8_t, D> d8;
  const auto limit = hn::Set(d, 127.0f);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto x = hn::Clamp(hn::Mul(hn::LoadU(d, v + i), inverse), hn::Neg(limit), limit);
    hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(x)), d8, codes + i);
  }
}

template <class D>
void encode_int8(D d, const float* k, const float* v, size_t head_dim, const uint8_t* index,
                 uint8_t* body) {
  for (size_t c = 0; c < head_dim; c += hn::Lanes(d)) {
    encode_key_codes(d, k, head_dim, c, index, body);
  }
  auto* codes = reinterpret_cast<int8_t*>(body + 24 * head_dim);
  uint8_t* step = body + (24 + kBlockTokens) * head_dim;
  for (size_t t = 0; t < kBlockTokens; ++t) {
    for (size_t c = 0; c < head_dim; c += 32, step += 2) {
      const size_t at = t * head_dim + c;
      encode_value_codes(d, v + at, std::min<size_t>(32, head_dim - c), step, codes + at);
    }
  }
}

template <class D>
HWY_INLINE hn::Vec<WordOf<D>> bf16_bits(D, hn::Vec<D> x) {  // in the low half
  const WordOf<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, rounded);
}

template <class D>
void encode_bf16(D d, const float* k, const float* v, size_t head_dim, uint8_t* body) {
  const WordOf<D> du;
  const hn::Rebind<uint16_t, D> dh;
  auto* keys = reinterpret_cast<uint32_t*>(body);
  auto* values = keys + kBlockTokens / 2 * head_dim;
  constexpr size_t kChunk = std::max<size_t>(hn::MaxLanes(D()), 8);
  uint16_t halves[kChunk];
  for (size_t t = 0; t < kBlockTokens; ++t) {
    for (size_t c = 0; c < head_dim; c += kChunk) {
      for (size_t i = 0; i < kChunk; i += hn::Lanes(d)) {
        const auto bits = bf16_bits(d, hn::LoadU(d, k + t * head_dim + c + i));
        hn::StoreU(hn::DemoteTo(dh, hn::BitCast(IntOf<D>(), bits)), dh, halves + i);
      }
      for (size_t i = 0; i < kChunk; i += 2) {
        std::memcpy(keys + (c + i) / 2 * kBlockTokens + t, halves + i, 4);
      }
    }
  }
  for (size_t t = 0; t < kBlockTokens; t += 2) {
    for (size_t c = 0; c < head_dim; c += hn::Lanes(d)) {
      const auto first = bf16_bits(d, hn::LoadU(d, v + t * head_dim + c));
      const auto second = bf16_bits(d, hn::LoadU(d, v + (t + 1) * head_dim + c));
      hn::StoreU(hn::Or(first, hn::ShiftLeft<16>(second)), du, values + t / 2 * head_dim + c);
    }
  }
}

void encode_f32(const float* k, const float* v, size_t head_dim, uint8_t* body) {
  auto* keys = reinterpret_cast<float*>(body);
  for (size_t t = 0; t < kBlockTokens; ++t) {
    for (size_t c = 0; c < head_dim; ++c) keys[c * kBlockTokens + t] = k[t * head_dim + c];
  }
  std::memcpy(keys + kBlockTokens * head_dim, v, kBlockTokens * head_dim * sizeof(float));
}

void encode(KvFormat format, const float* k, const float* v, size_t head_dim, const uint8_t* index,
            uint8_t* body) {
  switch (format) {
    case KvFormat::kF32:
      return encode_f32(k, v, head_dim, body);
    case KvFormat::kBf16:
      return with_channel_tag(head_dim, [&](auto d) { encode_bf16(d, k, v, head_dim, body); });
    case KvFormat::kInt8:
      return with_channel_tag(head_dim,
                              [&](auto d) { encode_int8(d, k, v, head_dim, index, body); });
  }
}

// Two bits of each of 32 tokens, in token order.
HWY_INLINE void plane_codes(uint64_t plane, uint8_t* codes) {
  for (size_t group = 0; group < 4; ++group) {
    const uint64_t bits = plane >> (2 * group) & 0x0303030303030303u;
    std::memcpy(codes + 8 * group, &bits, sizeof bits);
  }
}

void decode_int8_keys(const uint8_t* index, const uint8_t* body, size_t head_dim, float* k) {
  const auto* top = reinterpret_cast<const uint64_t*>(index + 6 * head_dim);
  const auto* mid = reinterpret_cast<const uint64_t*>(body);
  const auto* halves = reinterpret_cast<const uint16_t*>(index);
  const uint8_t* low = body + 8 * head_dim;
  for (size_t c = 0; c < head_dim; ++c, low += 16) {
    const float k_min = f32_from_f16(halves[c]), k_step = f32_from_f16(halves[head_dim + c]);
    uint8_t tops[kBlockTokens], mids[kBlockTokens], lows[kBlockTokens];
    plane_codes(top[c], tops);
    plane_codes(mid[c], mids);
    for (size_t j = 0; j < 16; ++j) {
      lows[j] = low[j] & 15;
      lows[j + 16] = low[j] >> 4;
    }
    for (size_t t = 0; t < kBlockTokens; ++t) {
      const int code = tops[t] << 6 | mids[t] << 4 | lows[t];
      k[t * head_dim + c] = k_min + k_step * static_cast<float>(code);
    }
  }
}

template <class D>
void decode_int8_values(D d, const uint8_t* body, size_t head_dim, float* v) {
  const auto* codes = reinterpret_cast<const int8_t*>(body + 24 * head_dim);
  const auto* steps = reinterpret_cast<const uint16_t*>(body + (24 + kBlockTokens) * head_dim);
  const hn::Rebind<int8_t, D> d8;
  for (size_t t = 0; t < kBlockTokens; ++t) {
    for (size_t begin = 0; begin < head_dim; begin += 32, ++steps) {
      const auto step = hn::Set(d, f32_from_f16(*steps));
      const size_t end = t * head_dim + std::min(begin + 32, head_dim);
      for (size_t i = t * head_dim + begin; i < end; i += hn::Lanes(d)) {
        const auto code = hn::PromoteTo(IntOf<D>(), hn::LoadU(d8, codes + i));
        hn::StoreU(hn::Mul(step, hn::ConvertTo(d, code)), d, v + i);
      }
    }
  }
}

void decode_bf16_keys(const uint8_t* body, size_t head_dim, float* k) {
  const auto* pairs = reinterpret_cast<const uint32_t*>(body);
  for (size_t c = 0; c < head_dim; c += 2, pairs += kBlockTokens) {
    for (size_t t = 0; t < kBlockTokens; ++t) {
      k[t * head_dim + c] = f32_from_bits(pairs[t] << 16);
      k[t * head_dim + c + 1] = f32_from_bits(pairs[t] & 0xffff0000u);
    }
  }
}

void decode_bf16_values(const uint8_t* body, size_t head_dim, float* v) {
  const auto* pairs = reinterpret_cast<const uint32_t*>(body) + kBlockTokens / 2 * head_dim;
  for (size_t t = 0; t < kBlockTokens; t += 2, pairs += head_dim) {
    for (size_t c = 0; c < head_dim; ++c) {
      v[t * head_dim + c] = f32_from_bits(pairs[c] << 16);
      v[(t + 1) * head_dim + c] = f32_from_bits(pairs[c] & 0xffff0000u);
    }
  }
}

void decode_f32_keys(const uint8_t* body, size_t head_dim, float* k) {
  const auto* keys = reinterpret_cast<const float*>(body);
  for (size_t c = 0; c < head_dim; ++c, keys += kBlockTokens) {
    for (size_t t = 0; t < kBlockTokens; ++t) k[t * head_dim + c] = keys[t];
  }
}

void decode(KvFormat format, const uint8_t* index, const uint8_t* body, size_t head_dim, float* k,
            float* v) {
  const size_t page_floats = kBlockTokens * head_dim;
  switch (format) {
    case KvFormat::kF32:
      if (k != nullptr) decode_f32_keys(body, head_dim, k);
      if (v != nullptr) std::memcpy(v, body + page_floats * 4, page_floats * sizeof(float));
      return;
    case KvFormat::kBf16:
      if (k != nullptr) decode_bf16_keys(body, head_dim, k);
      if (v != nullptr) decode_bf16_values(body, head_dim, v);
      return;
    case KvFormat::kInt8:
      if (k != nullptr) decode_int8_keys(index, body, head_dim, k);
      if (v == nullptr) return;
      with_channel_tag(head_dim, [&](auto d) { decode_int8_values(d, body, head_dim, v); });
      return;
  }
}

}  // namespace varve::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace varve::kernels::cpu {

HWY_EXPORT(make_index);
HWY_EXPORT(encode);
HWY_EXPORT(decode);

void make_index(const float* k, uint32_t live_mask, size_t head_dim, uint8_t* index) {
  HWY_DYNAMIC_DISPATCH(make_index)(k, live_mask, head_dim, index);
}

void encode(KvFormat format, const float* k, const float* v, size_t head_dim, const uint8_t* index,
            uint8_t* body) {
  HWY_DYNAMIC_DISPATCH(encode)(format, k, v, head_dim, index, body);
}

void decode(KvFormat format, const uint8_t* index, const uint8_t* body, size_t head_dim, float* k,
            float* v) {
  HWY_DYNAMIC_DISPATCH(decode)(format, index, body, head_dim, k, v);
}

}  // namespace varve::kernels::cpu
#endif
