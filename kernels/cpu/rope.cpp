#include "kernels/rope.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace varve::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void turn(float* x, size_t heads, size_t head_dim, size_t rotary_dim, const float* cos,
          const float* sin) {
  const hn::ScalableTag<float> df;
  constexpr size_t kLanes = hn::MaxLanes(df);
  const size_t half = rotary_dim / 2;
  for (size_t h = 0; h < heads; ++h) {
    float* first = x + h * head_dim;
    float* second = first + half;
    size_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
      const auto a = hn::LoadU(df, first + i), b = hn::LoadU(df, second + i);
      const auto c = hn::LoadU(df, cos + i), s = hn::LoadU(df, sin + i);
      hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), df, first + i);
      hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), df, second + i);
    }
    for (; i < half; ++i) {
      const float a = first[i], b = second[i];
      first[i] = a * cos[i] - b * sin[i];
      second[i] = b * cos[i] + a * sin[i];
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace varve::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace varve::kernels::cpu {

HWY_EXPORT(turn);

void rope_rows(float* x, size_t heads, size_t head_dim, size_t rotary_dim, const float* cos,
               const float* sin) {
  HWY_DYNAMIC_DISPATCH(turn)(x, heads, head_dim, rotary_dim, cos, sin);
}

}  // namespace varve::kernels::cpu
#endif  // HWY_ONCE
