#include "kernels/norm.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/store-inl.h"

HWY_BEFORE_NAMESPACE();
namespace varve::kernels::cpu {
namespace HWY_NAMESPACE {

const hn::ScalableTag<float> df;
constexpr size_t kLanes = hn::MaxLanes(df);

float sum_of_squares(const float* x, size_t n) {
  auto even = hn::Zero(df), odd = hn::Zero(df);
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const auto a = hn::LoadU(df, x + i), b = hn::LoadU(df, x + i + kLanes);
    even = hn::MulAdd(a, a, even);
    odd = hn::MulAdd(b, b, odd);
  }
  float sum = hn::GetLane(hn::SumOfLanes(df, hn::Add(even, odd)));
  for (; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

template <class Out>
void normalise(const float* x, const float* w, float eps, Out* y, size_t n) {
  const float inverse = 1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps);
  const auto factor = hn::Set(df, inverse);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto scaled = hn::Mul(hn::LoadU(df, x + i), factor);
    store_as(df, hn::Mul(scaled, hn::LoadU(df, w + i)), y + i);
  }
  for (; i < n; ++i) store_one(x[i] * inverse * w[i], y + i);
}

void rms_norm_f32(const float* x, const float* w, float eps, float* y, size_t n) {
  normalise(x, w, eps, y, n);
}
void rms_norm_b16(const float* x, const float* w, float eps, uint16_t* y, size_t n) {
  normalise(x, w, eps, y, n);
}

}  // namespace HWY_NAMESPACE
}  // namespace varve::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace varve::kernels::cpu {

HWY_EXPORT(rms_norm_f32);
HWY_EXPORT(rms_norm_b16);

void rms_norm(const float* x, const float* w, float eps, float* y, size_t n) {
  HWY_DYNAMIC_DISPATCH(rms_norm_f32)(x, w, eps, y, n);
}

void rms_norm_bf16(const float* x, const float* w, float eps, uint16_t* y, size_t n) {
  HWY_DYNAMIC_DISPATCH(rms_norm_b16)(x, w, eps, y, n);
}

}  // namespace varve::kernels::cpu
#endif  // HWY_ONCE
