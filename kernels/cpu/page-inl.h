// page-inl.h: reading pages and turning queries with vectors; included once per target.
#if defined(VARVE_KERNELS_CPU_PAGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VARVE_KERNELS_CPU_PAGE_INL_H_
#undef VARVE_KERNELS_CPU_PAGE_INL_H_
#else
#define VARVE_KERNELS_CPU_PAGE_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstdlib>

#include "kernels/attend.h"

HWY_BEFORE_NAMESPACE();
namespace varve::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FullF = hn::ScalableTag<float>;
using HalfF = hn::CappedTag<float, 8>;  // divides every head_dim

// Calls fn with the widest tag whose lanes divide head_dim.
template <class Fn>
HWY_INLINE void with_channel_tag(size_t head_dim, Fn fn) {
  if (head_dim % hn::Lanes(FullF()) == 0) return fn(FullF());
  return fn(HalfF());
}

template <class D>
HWY_INLINE hn::Vec<D> load_f16(D d, const uint8_t* halves, size_t i) {
  const hn::Rebind<hwy::float16_t, D> dh;
  return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(halves) + i));
}

// e^x for x <= 0 within 2 ulp; 0 below -87. NaN gives NaN or 0.
template <class D>
HWY_INLINE hn::Vec<D> exp_negative(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  const auto in_range = hn::Gt(x, hn::Set(d, -87.0f));
  const auto n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504f)));
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693145752f), x);  // ln 2 in two parts
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860677e-6f), r);
  auto p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(di, hn::IfThenElseZero(in_range, n)));
  return hn::IfThenElseZero(in_range, hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent)));
}

template <class D>
HWY_INLINE void rotate_lanes(D d, const float* x, const float* cos, const float* sin, size_t half,
                             float sign, size_t& i, float* out) {
  for (; i + hn::Lanes(d) <= half; i += hn::Lanes(d)) {
    const auto c = hn::LoadU(d, cos + i), s = hn::Mul(hn::LoadU(d, sin + i), hn::Set(d, sign));
    const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + half + i);
    hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, out + i);
    hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, out + half + i);
  }
}

// out [head_dim] = x turned by the given cos and sin [rotary_dim / 2]; sign -1 turns back. out may
// be x.
HWY_INLINE void rotate(const RopeTable& rope, const float* x, const float* cos, const float* sin,
                       float sign, float* out) {
  const size_t half = rope.rotary_dim / 2;
  size_t i = 0;
  rotate_lanes(FullF(), x, cos, sin, half, sign, i, out);
  rotate_lanes(hn::CappedTag<float, 4>(), x, cos, sin, half, sign, i, out);
  rotate_lanes(hn::CappedTag<float, 1>(), x, cos, sin, half, sign, i, out);
  for (size_t c = 2 * half; c < rope.head_dim; ++c) out[c] = x[c];
}

// Turns a query by 32 * distance.
HWY_INLINE void rotate_coarse(const RopeTable& rope, const float* x, int32_t distance, float* out) {
  const size_t row = static_cast<size_t>(std::abs(distance)) * (rope.rotary_dim / 2);
  rotate(rope, x, rope.coarse_cos + row, rope.coarse_sin + row, distance < 0 ? -1.0f : 1.0f, out);
}

// q [rows][head_dim] = the rows of every step-th query, turned by their place in the block, times
// the scale. Returns the number of rows.
HWY_INLINE size_t load_queries(const QueryTile& tile, size_t step, float* q) {
  const RopeTable& rope = *tile.rope;
  const size_t half = rope.rotary_dim / 2;
  size_t row = 0;
  for (size_t i = 0; i < tile.n_queries; i += step) {
    const size_t angle = (tile.offset + i) * half;
    for (size_t g = 0; g < tile.group; ++g, ++row) {
      float* out = q + row * rope.head_dim;
      rotate(rope, tile.q + i * tile.q_stride + g * rope.head_dim, rope.fine_cos + angle,
             rope.fine_sin + angle, 1.0f, out);
      for (size_t c = 0; c < rope.head_dim; ++c) out[c] *= tile.scale;
    }
  }
  return row;
}

}  // namespace varve::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
