// attend_tile_steps.h: inside attend_tile. One driver walks groups of pages and blocks of rows; the
// steps that depend on the instruction set are a table of functions.
//
// A row is one head of one query; rows are sorted by query. Logits are kept in units of log2, so
// that probabilities are 2^(logit - max).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attend.h"

namespace varve::kernels::cpu::tile {

inline constexpr size_t kMaxSlots = 16;
inline constexpr float kLog2E = 1.44269504f;
// The running maximum of a row moves only when a logit exceeds it by this much: probabilities stay
// below 2^8 and the sums are seldom rescaled.
inline constexpr float kMaxSlack = 8.0f;

// Scratch of one call. Slots hold unpacked pages, their layouts belong to the steps.
struct Work {
  size_t head_dim;
  size_t o_dim;  // head_dim rounded up to 32; added channels of values are zero
  size_t rows;   // rounded up to Steps::rows; added rows have zero queries
  const RopeTable* rope;
  float* q;                 // [rows][head_dim], rotated, times scale * log2(e)
  uint16_t* q_packed;       // [rows * head_dim], layout of the steps
  const int32_t* position;  // [rows] of the row's query
  float* o;                 // [rows][o_dim], not yet divided by the sum
  float* max;               // [rows] what logits are relative to; -inf before the first key
  float* sum;               // [rows][16] partial sums of probabilities
  uint8_t* k[kMaxSlots];
  uint8_t* v[kMaxSlots];     // of the first v_width channels
  size_t v_width;            // channels side by side
  size_t v_block_bytes;      // from there to the next v_width channels
  float* bias;               // [slots][32] start value of the logits; -inf for dead tokens
  int64_t start[kMaxSlots];  // position of the first key; INT64_MIN where nothing is masked
  float* s;                  // [Steps::rows][Steps::slots * 32] logits, then probabilities
  uint16_t* p;               // the same shape, bf16
  float* page;               // [2 * 32 * o_dim] one page as f32
};

struct Steps {
  size_t rows;         // in a block
  size_t slots;        // in a group, at most kMaxSlots
  size_t value_bytes;  // of an unpacked key or value
  size_t v_width;      // channels of values side by side; 0 for all, else it divides head_dim
  // Turns w.q into the layout that update wants; in place for f32.
  void (*pack_queries)(const Work& w);
  // Fills w.k[slot] and w.v[slot]: keys rotated by -32 * page.distance, dead tokens zero.
  void (*unpack)(const Work& w, const KvPage& page, size_t slot);
  // Adds the keys of slots [begin, end) to o, max and sum of the block of rows that starts at row.
  void (*update)(const Work& w, size_t row, size_t begin, size_t end);
};

// Highway; the strongest target that cpu_target() allows.
const Steps& f32_steps();
// AVX512-BF16 instructions; only where cpu_features() has them. rotary_dim is a multiple of 4.
const Steps& bf16_steps();
// oneDNN between AVX512-BF16 steps; head_dim is a multiple of 64.
const Steps& matmul_steps();
bool matmul_has_amx();  // oneDNN may use it: its own limit on instruction sets counts

// Page as f32: k [head_dim][32] not rotated, v [32][o_dim]; dead tokens zero.
void decode_page(const KvPage& page, size_t head_dim, size_t o_dim, float* k, float* v);

// attend_tile with the given steps.
void attend_with(const Steps& steps, const QueryTile& tile, const KvPage* pages, size_t n_pages,
                 float* o, size_t o_stride, float* lse, size_t lse_stride);

// Masks the logits s[i * s_stride + t] of keys after their query: rows [row, row + n_rows), slot.
inline bool needs_mask(const Work& w, size_t row, size_t slot) {
  return w.start[slot] + static_cast<int64_t>(kBlockTokens) - 1 > w.position[row];
}
void mask_later_keys(const Work& w, size_t row, size_t n_rows, size_t slot, float* s,
                     size_t s_stride);

}  // namespace varve::kernels::cpu::tile
