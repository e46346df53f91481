#include "kernels/merge.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace varve::kernels::ref {

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
  const float sum = mine + theirs;
  for (size_t i = 0; i < d; ++i) o[i] = (o[i] * mine + other[i] * theirs) / sum;
  *lse = m + std::log(sum);
}

}  // namespace varve::kernels::ref
