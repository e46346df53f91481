// Exact union of two attention results over disjoint sets of keys:
//   m = max(s, s'), o = (o e^{s-m} + o' e^{s'-m}) / (e^{s-m} + e^{s'-m}), s = m + log(e^{s-m} +
//   e^{s'-m}).
// (o, lse) is updated in place with (other, other_lse); an empty set has lse = -inf and its o is
// not read. Thread-safe.
#pragma once

#include <cstddef>

namespace varve::kernels {
namespace ref {
void merge(float* o /* [d] */, float* lse, const float* other /* [d] */, float other_lse, size_t d);
}
namespace cpu {
void merge(float* o, float* lse, const float* other, float other_lse, size_t d);
}
}  // namespace varve::kernels
