// cache.h: the KV memory of one context: its blocks in text order, their tiers, and the summaries
// of its segments.
//
// Not thread-safe: whoever uses a context holds its lease (engine.h). Calls of one layer's write()
// for different blocks or heads may run at once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "adapters/light/kv/store.h"
#include "mri/kind/runtime.h"

namespace varve::light {

class KvCache {
 public:
  // budget_bytes 0: only the pool's budget counts. Ranges of `pinned` never leave hot.
  KvCache(const KvStore& store, uint64_t budget_bytes, std::span<const mri_token_range> pinned);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  uint32_t n_tokens() const { return n_tokens_; }
  std::span<const mri_kv_block> blocks() const { return views_; }
  std::span<const mri_kv_summary> summaries() const { return summary_views_; }
  uint64_t epoch() const { return epoch_; }

  // Makes room for n tokens at the end and counts them as filled: every layer must then write()
  // them. Under pressure asks the tier policy first. Throws mri::Error MRI_E_NOMEM and leaves the
  // cache as it was.
  void append(uint32_t n);
  // Forgets the last tokens so that n remain; undoes append().
  void truncate(uint32_t n);

  // Writes the keys (not yet rotated) and values of tokens [first, first + n) of one layer and KV
  // head, all within one block; strides in floats. Rotates keys by their offset in the block, and
  // makes the index when the block is full.
  void write(uint32_t layer, uint32_t kv_head, uint32_t first, uint32_t n, const float* k,
             size_t k_stride, const float* v, size_t v_stride);

  // Asks the kv_tier plugin and does what it says; then summarises complete segments that have left
  // hot. Returns how many actions could not be done. MRI_TIER_WHY_APPEND says that all appended
  // tokens are written; until then their blocks are not moved. Throws mri::Error.
  uint32_t apply_policy(uint32_t why, uint64_t wanted_bytes);

  // Notes that a plan reads these blocks in step `step`.
  void note_reads(std::span<const uint32_t> blocks, uint64_t step);

  struct Evicted {
    uint64_t n_tokens = 0, bytes = 0;
    uint32_t n_refused = 0;
  };
  // MRI_EVICT_*; sinks, pinned and partial blocks are refused (whole) and counted.
  Evicted evict(std::span<const mri_token_range> ranges, uint32_t granularity);

  mri_kv_usage usage() const;
  uint64_t block_bytes(size_t block) const;

 private:
  struct Block {
    PoolMemory index, body;
    const uint8_t* slot = nullptr;  // in the backing, while cold
    uint64_t last_read = 0;
    uint32_t reads = 0;
  };
  struct Summary {
    PoolMemory body;
    std::vector<float> bias;
  };

  uint64_t used_bytes() const;
  PoolMemory allocate(size_t bytes);
  void add_block();
  void drop_block(size_t block);
  void append_rows(uint32_t layer, uint32_t kv_head, mri_kv_block& view, uint32_t offset,
                   uint32_t n, const float* k, const float* v);
  void make_page_index(uint32_t layer, uint32_t kv_head, mri_kv_block& view);

  bool run_action(const mri_tier_action& action);
  bool demote_to_warm(size_t block);
  bool demote_to_cold(size_t block);
  bool promote(size_t block, uint32_t tier);
  void set_body(size_t block, const uint8_t* body, size_t page_bytes, uint32_t format,
                uint32_t tier);
  size_t find_block(uint64_t id) const;
  void evict_block(size_t block, Evicted& evicted);
  void evict_tokens(uint64_t first, uint64_t end, Evicted& evicted);

  void summarise_segments();
  bool make_summary(size_t segment);
  void gather_segment(size_t segment, uint32_t layer, uint32_t kv_head, std::vector<float>& k,
                      std::vector<float>& v) const;
  void drop_summary(size_t segment);

  const KvStore& store_;
  const uint64_t budget_bytes_;
  const std::vector<mri_token_range> pinned_;
  uint32_t n_tokens_ = 0;
  uint32_t settled_tokens_ = 0;  // written in all layers
  uint32_t hot_tokens_ = 0;
  uint64_t next_id_ = 1;
  uint64_t epoch_ = 1;
  uint64_t step_ = 0;
  std::vector<Block> blocks_;
  std::vector<mri_kv_block> views_;
  std::vector<Summary> summaries_;  // by position in summary_views_
  std::vector<mri_kv_summary> summary_views_;
};

}  // namespace varve::light
