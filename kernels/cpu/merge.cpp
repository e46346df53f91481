#include "kernels/merge.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/merge.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace varve::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// o = o * mine + other * theirs
void blend(float* o, float mine, const float* other, float theirs, size_t d) {
  const hn::ScalableTag<float> df;
  constexpr size_t kLanes = hn::MaxLanes(df);
  const auto a = hn::Set(df, mine), b = hn::Set(df, theirs);
  size_t i = 0;
  for (; i + kLanes <= d; i += kLanes) {
    const auto part = hn::Mul(hn::LoadU(df, other + i), b);
    hn::StoreU(hn::MulAdd(hn::LoadU(df, o + i), a, part), df, o + i);
  }
  for (; i < d; ++i) o[i] = o[i] * mine + other[i] * theirs;
}

}  // namespace HWY_NAMESPACE
}  // namespace varve::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace varve::kernels::cpu {

HWY_EXPORT(blend);

void merge(float* o, float* lse, const float* other, float other_lse, size_t d) {
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  if (other_lse == kEmpty) return;
  if (*lse == kEmpty) {
    std::memcpy(o, other, d * sizeof(float));
    *lse = other_lse;
    return;
  }
  const float m = std::max(*lse, other_lse);
  const float mine = std::exp(*lse - m), theirs = std::exp(other_lse - m);
  const float inverse = 1.0f / (mine + theirs);
  HWY_DYNAMIC_DISPATCH(blend)(o, mine * inverse, other, theirs * inverse, d);
  *lse = m + std::log(mine + theirs);
}

}  // namespace varve::kernels::cpu
#endif  // HWY_ONCE
