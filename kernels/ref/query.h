// query.h: a query as attention's definitions see it.
#pragma once

#include <cstdlib>

#include "kernels/attend.h"

namespace varve::kernels::ref {

// x [rope.head_dim] turned by `angle_row` of a table of cos and sin, backwards if `backwards`.
inline void rotate(const RopeTable& rope, const float* cos, const float* sin, size_t angle_row,
                   bool backwards, float* x) {
  const size_t half = rope.rotary_dim / 2;
  for (size_t i = 0; i < half; ++i) {
    const float c = cos[angle_row * half + i];
    const float s = backwards ? -sin[angle_row * half + i] : sin[angle_row * half + i];
    const float a = x[i], b = x[i + half];
    x[i] = a * c - b * s;
    x[i + half] = b * c + a * s;
  }
}

// Query i, head g, turned so that its product with a stored key of a page at `distance` is the
// product of both at their positions.
inline void rotated_query(const QueryTile& tile, size_t i, size_t g, int32_t distance, float* q) {
  const RopeTable& rope = *tile.rope;
  const float* from = tile.q + i * tile.q_stride + g * rope.head_dim;
  for (size_t c = 0; c < rope.head_dim; ++c) q[c] = from[c];
  rotate(rope, rope.fine_cos, rope.fine_sin, tile.offset + i, false, q);
  rotate(rope, rope.coarse_cos, rope.coarse_sin, static_cast<size_t>(std::abs(distance)),
         distance < 0, q);
}

}  // namespace varve::kernels::ref
