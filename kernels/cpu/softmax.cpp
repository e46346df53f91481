#include "kernels/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "hwy/contrib/math/math-inl.h"  // quoted: must come after foreach_target.h

HWY_BEFORE_NAMESPACE();
namespace varve::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

const hn::ScalableTag<float> df;
constexpr size_t kLanes = hn::MaxLanes(df);
constexpr float kEmpty = -std::numeric_limits<float>::infinity();

float largest_of(const float* x, size_t n) {
  auto largest = hn::Set(df, kEmpty);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) largest = hn::Max(hn::LoadU(df, x + i), largest);
  float result = hn::GetLane(hn::MaxOfLanes(df, largest));
  for (; i < n; ++i) result = std::max(result, x[i]);
  return result;
}

// x = exp(x - shift); returns the sum.
float exponentials(float* x, float shift, size_t n) {
  const auto by = hn::Set(df, shift);
  // Below this exp is zero; the clamp keeps -inf out of the polynomial, and NaN in.
  const auto smallest = hn::Set(df, -105.0f);
  auto sum = hn::Zero(df);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto shifted = hn::Sub(hn::LoadU(df, x + i), by);
    const auto e = hn::IfThenElse(hn::Lt(shifted, smallest), hn::Zero(df), hn::Exp(df, shifted));
    sum = hn::Add(sum, hn::IfThenElse(hn::IsNaN(shifted), shifted, e));
    hn::StoreU(e, df, x + i);
  }
  float result = hn::GetLane(hn::SumOfLanes(df, sum));
  for (; i < n; ++i) {
    x[i] = std::exp(x[i] - shift);
    result += x[i];
  }
  return result;
}

float softmax_row(float* x, size_t n) {
  const float largest = largest_of(x, n);
  const float sum = exponentials(x, largest == kEmpty ? 0.0f : largest, n);
  if (sum == 0.0f) return kEmpty;
  const float inverse = 1.0f / sum;
  size_t i = 0;
  const auto factor = hn::Set(df, inverse);
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(df, x + i), factor), df, x + i);
  }
  for (; i < n; ++i) x[i] *= inverse;
  return largest + std::log(sum);
}

}  // namespace HWY_NAMESPACE
}  // namespace varve::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace varve::kernels::cpu {

HWY_EXPORT(softmax_row);

float softmax(float* x, size_t n) { return HWY_DYNAMIC_DISPATCH(softmax_row)(x, n); }

}  // namespace varve::kernels::cpu
#endif  // HWY_ONCE
