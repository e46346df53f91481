// The sketch estimate of score_pages with byte dot products, on CPUs with AVX512_VNNI only.
#pragma once

#include <cstddef>

#include "kernels/attend.h"

namespace varve::kernels::cpu {

inline constexpr size_t kSketchVnniPages = 8;

// Whether cpu_target() and the shape of a head allow sketch_masses_vnni: all channels turn,
// head_dim is a multiple of 32 and at most 256.
bool sketch_vnni_takes(const RopeTable& rope);

// The mass of page p for row r is factor[r * stride + p] * 2^exponent[r * stride + p]; pages that
// are not live are left as they are. n_pages <= kSketchVnniPages. q [rows][head_dim]: queries
// turned by their place in the block but not to a page, times scale * log2(e).
//
// Per page and row, q_c * 64 k_step_c is rounded to 8 bits on the scale of the largest one, m. That
// moves a logit of 64 channels by about 0.02 m, where what two-bit codes leave open moves it by
// 0.29 m or more.
void sketch_masses_vnni(const RopeTable& rope, const KvPage* pages, size_t n_pages, const float* q,
                        size_t rows, float* exponent, float* factor, size_t stride);

}  // namespace varve::kernels::cpu
