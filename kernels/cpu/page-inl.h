// page-inl.h: reading pages and turning queries with vectors; included once per target.
#if defined(VARVE_KERNELS_CPU_PAGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VARVE_KERNELS_CPU_PAGE_INL_H_
#undef VARVE_KERNELS_CPU_PAGE_INL_H_
#else
#define VARVE_KERNELS_CPU_PAGE_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdlib>

#include "kernels/attend.h"

HWY_BEFORE_NAMESPACE();
namespace varve::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kBlockRows = 4;  // rows that share one reading of a page

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

constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

// 1.5 * 2^23: added to |x| < 2^22, it leaves x rounded to an integer in the low bits.
constexpr float kRounder = 12582912.0f;

// 2^x for x <= 0 within 2 ulp; 0 below -126. The polynomial is minimax for |x| <= 1/2.
template <class D>
HWY_INLINE hn::Vec<D> exp2_negative(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  const auto in_range = hn::Gt(x, hn::Set(d, -126.0f));
  const auto shifted = hn::Add(x, hn::Set(d, kRounder));
  const auto r = hn::Sub(x, hn::Sub(shifted, hn::Set(d, kRounder)));
  auto p = hn::MulAdd(r, hn::Set(d, 1.535336188e-4f), hn::Set(d, 1.339887440e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 9.618437357e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.550332471e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 2.402264791e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 6.931472029e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  return hn::IfThenElseZero(in_range, hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent)));
}

// Rows [rows][stride] of which channels i.. of both halves of the rotary pairs are turned.
template <class D>
HWY_INLINE void rotate_lanes(D d, const float* x, size_t x_stride, size_t rows, const float* cos,
                             const float* sin, float sign, size_t half, size_t& i, float* out,
                             size_t out_stride) {
  for (; i + hn::Lanes(d) <= half; i += hn::Lanes(d)) {
    const auto c = hn::LoadU(d, cos + i), s = hn::Mul(hn::LoadU(d, sin + i), hn::Set(d, sign));
    for (size_t r = 0; r < rows; ++r) {
      const float* from = x + r * x_stride + i;
      float* to = out + r * out_stride + i;
      const auto a = hn::LoadU(d, from), b = hn::LoadU(d, from + half);
      hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, to);
      hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, to + half);
    }
  }
}

// out [rows][head_dim] = rows of x turned by cos and sin [rotary_dim / 2]; sign -1 turns back.
HWY_INLINE void rotate(const RopeTable& rope, const float* x, size_t x_stride, size_t rows,
                       const float* cos, const float* sin, float sign, float* out) {
  const size_t half = rope.rotary_dim / 2, n = rope.head_dim;
  size_t i = 0;
  rotate_lanes(FullF(), x, x_stride, rows, cos, sin, sign, half, i, out, n);
  rotate_lanes(hn::CappedTag<float, 4>(), x, x_stride, rows, cos, sin, sign, half, i, out, n);
  rotate_lanes(hn::CappedTag<float, 1>(), x, x_stride, rows, cos, sin, sign, half, i, out, n);
  for (size_t r = 0; r < rows && 2 * half < n; ++r) {
    std::copy(x + r * x_stride + 2 * half, x + r * x_stride + n, out + r * n + 2 * half);
  }
}

// Turns queries [rows][head_dim] by 32 * distance.
HWY_INLINE void rotate_to_page(const RopeTable& rope, const float* x, size_t rows, int32_t distance,
                               float* out) {
  const size_t row = static_cast<size_t>(std::abs(distance)) * (rope.rotary_dim / 2);
  rotate(rope, x, rope.head_dim, rows, rope.coarse_cos + row, rope.coarse_sin + row,
         distance < 0 ? -1.0f : 1.0f, out);
}

// q [rows][head_dim] = the rows of every step-th query, turned by their place in the block, times
// scale * log2(e): logits are exponents of two here.
HWY_INLINE void load_queries(const QueryTile& tile, size_t step, float* q) {
  const RopeTable& rope = *tile.rope;
  const float scale = tile.scale * kLog2E;
  const size_t query_floats = size_t{tile.group} * rope.head_dim;
  for (size_t i = 0; i < tile.n_queries; i += step, q += query_floats) {
    const size_t angle = (tile.offset + i) * (rope.rotary_dim / 2);
    rotate(rope, tile.q + i * tile.q_stride, rope.head_dim, tile.group, rope.fine_cos + angle,
           rope.fine_sin + angle, 1.0f, q);
    for (size_t c = 0; c < query_floats; ++c) q[c] *= scale;
  }
}

struct Add {
  [[maybe_unused]] float operator()(float a, float b) const { return a + b; }
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};

struct Max {
  [[maybe_unused]] float operator()(float a, float b) const { return std::max(a, b); }
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Max(a, b);
  }
};

// out[r] = the lanes of v[r] taken together by op, for a block of rows at once.
template <class Op, class D>
HWY_INLINE void reduce_rows(D d, Op op, const hn::Vec<D>* v, float* out) {
#if HWY_CAP_GE256
  const hn::RepartitionToWide<D> dw;
  const auto ab = op(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1]));
  const auto cd = op(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3]));
  const auto ab2 = hn::BitCast(dw, ab), cd2 = hn::BitCast(dw, cd);
  const auto all = op(hn::BitCast(d, hn::InterleaveLower(dw, ab2, cd2)),
                      hn::BitCast(d, hn::InterleaveUpper(dw, ab2, cd2)));
  const hn::Half<D> dh;
  const auto half = op(hn::LowerHalf(dh, all), hn::UpperHalf(dh, all));
  if constexpr (hn::MaxLanes(D()) == 16) {
    const hn::Half<decltype(dh)> dq;
    hn::StoreU(op(hn::LowerHalf(dq, half), hn::UpperHalf(dq, half)), dq, out);
  } else {
    hn::StoreU(half, dh, out);
  }
#else
  for (size_t r = 0; r < kBlockRows; ++r) {
    float lanes[hn::MaxLanes(D())];
    hn::StoreU(v[r], d, lanes);
    out[r] = lanes[0];
    for (size_t i = 1; i < hn::Lanes(d); ++i) out[r] = op(out[r], lanes[i]);
  }
#endif
}

// Calls fn.template operator()<n>(row) for all rows in blocks of n <= kBlockRows.
template <class Fn>
HWY_INLINE void for_row_blocks(size_t rows, Fn fn) {
  size_t r = 0;
  for (; r + kBlockRows <= rows; r += kBlockRows) fn.template operator()<kBlockRows>(r);
  if (rows - r == 3) fn.template operator()<3>(r);
  if (rows - r == 2) fn.template operator()<2>(r);
  if (rows - r == 1) fn.template operator()<1>(r);
}

}  // namespace varve::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
