#include "kernels/swiglu.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/swiglu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "hwy/contrib/math/math-inl.h"  // quoted: must come after foreach_target.h
#include "kernels/cpu/store-inl.h"

HWY_BEFORE_NAMESPACE();
namespace varve::kernels::cpu {
namespace HWY_NAMESPACE {

template <class Out>
void gated(const float* gate, const float* up, Out* y, size_t n) {
  const hn::ScalableTag<float> df;
  constexpr size_t kLanes = hn::MaxLanes(df);
  const auto one = hn::Set(df, 1.0f);
  const auto largest = hn::Set(df, 88.0f);  // exp stays finite; silu(-88) is 0 to f32 already
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto g = hn::LoadU(df, gate + i);
    const auto e = hn::Exp(df, hn::Min(hn::Neg(g), largest));
    const auto silu = hn::Div(g, hn::Add(one, e));
    store_as(df, hn::Mul(silu, hn::LoadU(df, up + i)), y + i);
  }
  for (; i < n; ++i) store_one(gate[i] / (1.0f + std::exp(-gate[i])) * up[i], y + i);
}

void swiglu_f32(const float* gate, const float* up, float* y, size_t n) { gated(gate, up, y, n); }
void swiglu_b16(const float* gate, const float* up, uint16_t* y, size_t n) {
  gated(gate, up, y, n);
}

}  // namespace HWY_NAMESPACE
}  // namespace varve::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace varve::kernels::cpu {

HWY_EXPORT(swiglu_f32);
HWY_EXPORT(swiglu_b16);

void swiglu(const float* gate, const float* up, float* y, size_t n) {
  HWY_DYNAMIC_DISPATCH(swiglu_f32)(gate, up, y, n);
}

void swiglu_bf16(const float* gate, const float* up, uint16_t* y, size_t n) {
  HWY_DYNAMIC_DISPATCH(swiglu_b16)(gate, up, y, n);
}

}  // namespace varve::kernels::cpu
#endif  // HWY_ONCE
