#include "kernels/convert.h"

#include "kernels/number.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/convert.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/store-inl.h"

HWY_BEFORE_NAMESPACE();
namespace varve::kernels::cpu {
namespace HWY_NAMESPACE {

const hn::ScalableTag<float> df;
constexpr size_t kLanes = hn::MaxLanes(df);

void to_bf16(const float* x, uint16_t* y, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_as(df, hn::LoadU(df, x + i), y + i);
  for (; i < n; ++i) store_one(x[i], y + i);
}

void to_f32(const uint16_t* x, float* y, size_t n) {
  const hn::Rebind<hwy::bfloat16_t, decltype(df)> d16;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto narrow = hn::LoadU(d16, reinterpret_cast<const hwy::bfloat16_t*>(x + i));
    hn::StoreU(hn::PromoteTo(df, narrow), df, y + i);
  }
  for (; i < n; ++i) y[i] = kernels::f32_from_bf16(x[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace varve::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace varve::kernels::cpu {

HWY_EXPORT(to_bf16);
HWY_EXPORT(to_f32);

void bf16_from_f32(const float* x, uint16_t* y, size_t n) {
  HWY_DYNAMIC_DISPATCH(to_bf16)(x, y, n);
}

void f32_from_bf16(const uint16_t* x, float* y, size_t n) { HWY_DYNAMIC_DISPATCH(to_f32)(x, y, n); }

}  // namespace varve::kernels::cpu
#endif  // HWY_ONCE
