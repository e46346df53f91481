// attend_tile_bf16.h: AVX512-BF16 steps that other ways of attend_tile share.
#pragma once

#include "kernels/cpu/attend_tile_steps.h"

namespace varve::kernels::cpu::tile {

// Steps::unpack to keys [head_dim / 2][32][2] and values [16][v_width][2]; rotary_dim is a multiple
// of 4.
void bf16_unpack(const Work& w, const KvPage& page, size_t slot);

// Steps::pack_queries that only rounds: q_packed [rows][head_dim].
void bf16_round_queries(const Work& w);

// n logits of a row to probabilities; raises w.max, rescales w.o and w.sum, adds to w.sum. n is a
// multiple of 32.
void bf16_softmax_row(const Work& w, size_t row, const float* s, uint16_t* p, size_t n);

}  // namespace varve::kernels::cpu::tile
