// What one tile of queries reads for one KV head: sinks, chosen blocks, window, summaries of the
// rest.
#pragma once

#include <cstdint>
#include <vector>

#include "memory.h"
#include "mri/ext/kernels.h"

namespace hybrid {

inline constexpr uint32_t kBlock = MRI_BLOCK_TOKENS;

enum class Positions { kAuto, kTrue, kCompact };

struct Options {
  uint32_t window_blocks, top_k, sink_blocks, dense_below_tokens, dense_prompt_tokens,
      candidates_percent, query_step, reuse_steps, tile_queries;
  float summary_weight;
  bool dense_last_tile;
  Positions positions;
};

// Queries [first, first + n) of a sequence; they start in block `block` and end in block `last`.
struct Tile {
  uint32_t first, n, block, last;
};

// The blocks of a sequence that can be read, in text order; the first n_sinks of them are sinks.
// `runs` counts the gaps between them, plus one.
struct Live {
  std::vector<uint32_t> blocks;
  uint32_t n_sinks = 0, runs = 0;

  void assign(const mri_attn_seq& seq, const Options& options);
};

// Reusable memory of one thread.
struct Scratch {
  std::vector<uint32_t> chosen, kept, picks;
  std::vector<int32_t> distances;
  std::vector<float> scores;
};

// Are the sequence's queries less than a tile, so that the next ones may belong to the same? Then
// they are one tile here.
bool is_piece(const Options& options, const mri_attn_seq& seq);

// What choose() did.
struct Chosen {
  uint64_t n_entries = 0;
  bool chose = false;           // else: everything was read
  uint32_t n = 0, n_again = 0;  // blocks; of these, chosen the time before too (when timed)
};

// The most entries that choose() writes for any tile of the sequence.
uint64_t entries_max(const mri_attn_seq& seq, const Live& live, const Options& options);

// Writes the entries of (sequence s, tile, KV head), farthest first. A shortlist in `remembered`
// (may be null) that is younger than reuse_steps is taken again, otherwise replaced; so is the
// choice for an earlier piece of the same tile. Throws mri::Error when a kernel refuses. Positions:
// true ones while the tile lies inside the trained length; beyond it compact ones, as if the text
// were the sinks, the chosen blocks and the window, without gaps.
Chosen choose(const Options& options, const mri_kernels_v1& kernels, const mri_attn_req& req,
              uint32_t s, uint32_t kv_head, const Tile& tile, const Live& live,
              Remembered* remembered, Scratch& scratch, mri_attn_entry* out);

}  // namespace hybrid
