#include "kernels/top_k.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/top_k.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace varve::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::ScalableTag<int32_t> di;

// Scores as integers of the same order; -0 equals 0, NaN equals -inf.
HWY_INLINE hn::Vec<decltype(di)> ordered(hn::Vec<hn::ScalableTag<float>> x) {
  const hn::ScalableTag<float> df;
  const hn::RebindToUnsigned<decltype(di)> du;
  const auto number = hn::IfThenElse(hn::IsNaN(x), hn::Set(df, -INFINITY), x);
  const auto bits = hn::BitCast(di, hn::Add(number, hn::Zero(df)));
  const auto negative = hn::BitCast(du, hn::BroadcastSignBit(bits));
  return hn::Xor(bits, hn::BitCast(di, hn::ShiftRight<1>(negative)));
}

HWY_INLINE size_t count_at_least(const int32_t* keys, size_t n_padded, int32_t bound) {
  size_t count = 0;
  for (size_t i = 0; i < n_padded; i += hn::Lanes(di)) {
    count += hn::CountTrue(di, hn::Gt(hn::LoadU(di, keys + i), hn::Set(di, bound - 1)));
  }
  return count;
}

struct Threshold {
  int32_t bound;  // the k-th largest key, or less if nothing lies between
  size_t count;   // keys >= bound, at least k
};

// Halves the range of keys until k of them are left, or only equal ones.
Threshold find_threshold(const int32_t* keys, size_t n_padded, size_t n, size_t k) {
  const auto [min, max] = std::minmax_element(keys, keys + n);
  int64_t low = *min, high = int64_t{*max} + 1;  // count(low) >= k > count(high)
  size_t count = n;
  while (high - low > 1 && count != k) {
    const int64_t middle = low + (high - low) / 2;
    const size_t above = count_at_least(keys, n_padded, static_cast<int32_t>(middle));
    if (above >= k) {
      low = middle;
      count = above;
    } else {
      high = middle;
    }
  }
  return {static_cast<int32_t>(low), count};
}

size_t top_k(const float* scores, size_t n, size_t k, uint32_t* out) {
  if (k >= n) {
    std::iota(out, out + n, 0u);
    return n;
  }
  if (k == 0) return 0;
  const size_t lanes = hn::Lanes(di), n_padded = (n + lanes - 1) / lanes * lanes;
  thread_local std::vector<int32_t> scratch;
  scratch.assign(n_padded, INT32_MIN);
  int32_t* keys = scratch.data();
  size_t i = 0;
  const hn::ScalableTag<float> df;
  for (; i + lanes <= n; i += lanes) hn::StoreU(ordered(hn::LoadU(df, scores + i)), di, keys + i);
  for (; i < n; ++i) keys[i] = hn::GetLane(ordered(hn::Set(df, scores[i])));

  const Threshold threshold = find_threshold(keys, n_padded, n, k);
  size_t surplus = threshold.count - k, n_out = 0;  // the last of the equal ones stay out
  for (size_t p = n; surplus > 0; --p) {
    if (keys[p - 1] != threshold.bound) continue;
    keys[p - 1] = INT32_MIN;
    --surplus;
  }
  for (size_t p = 0; n_out < k; ++p) {
    if (keys[p] >= threshold.bound) out[n_out++] = static_cast<uint32_t>(p);
  }
  return k;
}

}  // namespace varve::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace varve::kernels::cpu {

HWY_EXPORT(top_k);

size_t top_k(const float* scores, size_t n, size_t k, uint32_t* out) {
  return HWY_DYNAMIC_DISPATCH(top_k)(scores, n, k, out);
}

}  // namespace varve::kernels::cpu
#endif
