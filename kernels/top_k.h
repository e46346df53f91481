// top_k.h: the places of the largest scores.
#pragma once

#include <cstddef>
#include <cstdint>

namespace varve::kernels {

// Writes the places of the k largest of n scores in rising order of place and returns min(k, n).
// Equal scores: the lower place wins; NaN counts as -inf. out holds k numbers.
namespace ref {
size_t top_k(const float* scores, size_t n, size_t k, uint32_t* out);
}
namespace cpu {
size_t top_k(const float* scores, size_t n, size_t k, uint32_t* out);
}

}  // namespace varve::kernels
