// block.h: what a context, or a kept prefix, holds of each block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "adapters/light/kv/backing.h"
#include "adapters/light/kv/pool.h"
#include "mri/kv_view.h"

namespace varve::light {

struct KvBlockMemory {
  PoolMemory index, body;
  Backing::Slot slot;  // while cold
  uint64_t last_read = 0;
  uint32_t reads = 0;
  double mass = 0;  // sum of the queries' shares of attention, older ones counted less
};

// The first blocks of a context as they were at one moment: full, every token live. Read by any
// number of threads.
struct KvPrefix {
  std::vector<KvBlockMemory> blocks;
  std::vector<mri_kv_block> views;
  std::vector<PoolMemory> summaries;
  std::vector<mri_kv_summary> summary_views;
  uint64_t step = 0, epoch = 0;
  double mass_queries = 0;
  uint32_t hot_tokens = 0;
  bool summaries_failed = false;
};

// The most blocks, up to n, that a context can go on from: not a part of a segment of which only
// the summary is left.
size_t fork_blocks(const KvPrefix& prefix, size_t n);

}  // namespace varve::light
