// attend.h: attention of a tile of queries over a list of pages, and estimates of how much each
// page would get.
//
// Positions: key t of a page lies at 32 * -distance + t, query i at offset + i, both relative to
// the start of the block that holds the tile's first query. Keys are stored rotated by t; the
// kernel rotates queries by offset + i and by 32 * distance (or the page by -32 * distance, which
// is the same). A key after its query is masked, except in pages with a bias.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/page.h"

namespace varve::kernels {

// cos and sin of n times the rotary angles, [n][rotary_dim / 2]: fine counts tokens, coarse blocks
// of 32.
struct RopeTable {
  const float* fine_cos;
  const float* fine_sin;
  const float* coarse_cos;
  const float* coarse_sin;
  uint32_t n_fine, n_coarse;
  uint32_t head_dim, rotary_dim;
};

struct KvPage {
  const uint8_t* index;
  const uint8_t* body;
  const float* bias;  // [32] added to the logits, or null
  uint32_t live_mask;
  KvFormat format;
  int32_t distance;  // in blocks; negative for later blocks of the tile itself
  float log_weight;  // added to every logit
};

enum class Compute {
  kF32,
  kBf16
};  // kBf16 may round queries, keys, probabilities and values to bf16; sums stay f32

struct QueryTile {
  const float* q;  // head g of query i at q + i * q_stride + g * head_dim; not rotated
  size_t q_stride;
  uint32_t n_queries, group;  // rows = n_queries * group
  uint32_t offset;  // of the first query in its block, 0..31; offset + n_queries <= rope->n_fine
  float scale;
  Compute compute;
  const RopeTable* rope;
};

// o [n_queries][group][head_dim] at o + i * o_stride + g * head_dim, lse at lse + i * lse_stride +
// g. An empty set of keys gives o = 0, lse = -inf. Re-entrant; scratch is thread-local.
namespace ref {
void attend(const QueryTile& tile, const KvPage* pages, size_t n_pages, float* o, size_t o_stride,
            float* lse, size_t lse_stride);
}
namespace cpu {
void attend(const QueryTile& tile, const KvPage* pages, size_t n_pages, float* o, size_t o_stride,
            float* lse, size_t lse_stride);
// The two ways cpu::attend computes; it picks by the number of rows. Public for tests and
// benchmarks.
void attend_rows(const QueryTile& tile, const KvPage* pages, size_t n_pages, float* o,
                 size_t o_stride, float* lse, size_t lse_stride);
void attend_tile(const QueryTile& tile, const KvPage* pages, size_t n_pages, float* o,
                 size_t o_stride, float* lse, size_t lse_stride);
}  // namespace cpu

// How the mass of a page is estimated from its index alone (body may be null).
enum class Score : uint32_t {
  kRadius =
      0,  // n_live * exp(scale * sum_c max(q_c (centre_c - radius_c), q_c (centre_c + radius_c)))
  kSketch = 1,  // sum over live tokens of exp(scale * q . sketch key); bucket b of 0..3 reads k_min
                // + (64 b + 31.5) k_step
};

// scores[p] = sum over the used rows of softmax over pages of log mass. Rows are every
// query_step-th query, all heads.
namespace ref {
void score_pages(const QueryTile& tile, const KvPage* pages, size_t n_pages, Score how,
                 uint32_t query_step, float* scores);
}
namespace cpu {
void score_pages(const QueryTile& tile, const KvPage* pages, size_t n_pages, Score how,
                 uint32_t query_step, float* scores);
}

}  // namespace varve::kernels
