#include "kernels/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace varve::kernels::ref {

float softmax(float* x, size_t n) {
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  float largest = kEmpty;
  for (size_t i = 0; i < n; ++i) largest = std::max(largest, x[i]);
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    // Nothing but -inf: zeros, not the NaN of -inf - -inf. A NaN of x still shows.
    const float shifted = largest == kEmpty ? x[i] : x[i] - largest;
    x[i] = std::exp(shifted);
    sum += x[i];
  }
  if (sum == 0) return kEmpty;
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(x[i] / sum);
  return largest + static_cast<float>(std::log(sum));
}

}  // namespace varve::kernels::ref
