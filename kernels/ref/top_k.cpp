#include "kernels/top_k.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace varve::kernels::ref {

size_t top_k(const float* scores, size_t n, size_t k, uint32_t* out) {
  const auto key = [&](uint32_t place) {
    return std::isnan(scores[place]) ? -INFINITY : scores[place];
  };
  std::vector<uint32_t> places(n);
  std::iota(places.begin(), places.end(), 0u);
  std::stable_sort(places.begin(), places.end(),
                   [&](uint32_t a, uint32_t b) { return key(a) > key(b); });
  places.resize(std::min(k, n));
  std::sort(places.begin(), places.end());
  std::copy(places.begin(), places.end(), out);
  return places.size();
}

}  // namespace varve::kernels::ref
