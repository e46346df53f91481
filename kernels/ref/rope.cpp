#include "kernels/rope.h"

namespace varve::kernels::ref {

void rope_rows(float* x, size_t heads, size_t head_dim, size_t rotary_dim, const float* cos,
               const float* sin) {
  const size_t half = rotary_dim / 2;
  for (size_t h = 0; h < heads; ++h) {
    float* first = x + h * head_dim;
    float* second = first + half;
    for (size_t i = 0; i < half; ++i) {
      const float a = first[i], b = second[i];
      first[i] = a * cos[i] - b * sin[i];
      second[i] = b * cos[i] + a * sin[i];
    }
  }
}

}  // namespace varve::kernels::ref
