// In place: x[i] = exp(x[i] - lse), where lse = log(sum exp(x)) is returned. An empty row (n = 0,
// or nothing but -inf) gives -inf and zeros; NaN in x gives NaN. Thread-safe.
#pragma once

#include <cstddef>

namespace varve::kernels {
namespace ref {
float softmax(float* x, size_t n);
}
namespace cpu {
float softmax(float* x, size_t n);
}
}  // namespace varve::kernels
