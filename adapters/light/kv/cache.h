// cache.h: the KV memory of one context: its blocks in text order, their tiers, and the summaries
// of its segments.
//
// Not thread-safe: whoever uses a context holds its lease (engine.h). Calls of one layer's write()
// for different blocks or heads may run at once.
//
// Full blocks, summaries and backing slots are never written again, only replaced: so contexts and
// kept prefixes share them by holding them (kv/pool.h), and a change in one never shows in another.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "adapters/light/kv/block.h"
#include "adapters/light/kv/store.h"
#include "mri/kind/runtime.h"

namespace varve::light {

class KvCache {
 public:
  // budget_bytes 0: only the pool's budget counts. Ranges of `pinned` never leave hot.
  KvCache(const KvStore& store, uint64_t budget_bytes, std::span<const mri_token_range> pinned);
  // Goes on from the first n_blocks of a prefix, which are shared; 0 < n_blocks, as fork_blocks()
  // says. Tiers, flags, statistics and the epoch carry over. Throws mri::Error MRI_E_NOMEM when the
  // budget is smaller than the prefix.
  KvCache(const KvStore& store, uint64_t budget_bytes, const KvPrefix& prefix, size_t n_blocks);
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
  // Forgets the last tokens so that n remain. Undoes append(); what apply_policy() has moved since
  // can be undone only down to the tokens of a hold().
  void truncate(uint32_t n);
  // Until release_hold(), the block of token n_tokens() and its segment's summary are left alone by
  // policies, so that truncate() to here stays possible.
  void hold() { held_block_ = n_tokens_ / MRI_BLOCK_TOKENS; }
  void release_hold() { held_block_ = SIZE_MAX; }

  // Writes the keys (not yet rotated) and values of tokens [first, first + n) of one layer and KV
  // head, all within one block; strides in floats. Rotates keys by their offset in the block, and
  // makes the index when the block is full.
  void write(uint32_t layer, uint32_t kv_head, uint32_t first, uint32_t n, const float* k,
             size_t k_stride, const float* v, size_t v_stride);

  // Asks the kv_tier plugin and does what it says; then summarises complete segments that have left
  // hot, of which it does as much as goes with the tokens appended: a segment's summary is there
  // kSummaryTokens later, sooner when blocks need it to go cold. Returns how many actions could not
  // be done; one that fails is logged and leaves its block as it was. MRI_TIER_WHY_APPEND says that
  // all appended tokens are written; until then their blocks are not moved. Throws mri::Error when
  // the policy itself fails; then nothing has moved.
  uint32_t apply_policy(uint32_t why, uint64_t wanted_bytes);

  // Notes that a step's plan reads these blocks.
  void note_reads(std::span<const uint32_t> blocks);
  // Notes what the step's n_queries gave to each block: the sum of their shares of attention, each
  // as much as KvStore::mass_weight() counts it.
  void note_mass(std::span<const float> received, uint32_t n_queries);

  struct Evicted {
    uint64_t n_tokens = 0, bytes = 0;
    uint32_t n_refused = 0;
  };
  // MRI_EVICT_*; sinks and pinned blocks are refused and counted, partial ones too unless single
  // tokens are asked for. Where only a summary is left of some blocks, all blocks that it stands
  // for go together, or are refused: a part of it cannot be taken out.
  Evicted evict(std::span<const mri_token_range> ranges, uint32_t granularity);

  // How many of the first n blocks a prefix can hold: full, written, and no token evicted.
  size_t prefix_blocks(size_t n) const;
  std::shared_ptr<KvPrefix> prefix(size_t n_blocks) const;

  // Asks the kv_tier policy to make room. Returns what went back to the pool.
  uint64_t shrink(uint64_t wanted_bytes);

  // Of the context, what it shares included.
  mri_kv_usage usage() const;
  uint64_t block_bytes(size_t block) const;

 private:
  PoolMemory allocate(size_t bytes);
  void add_block();
  void drop_block(size_t block);
  void forget_pages(size_t block);
  void append_rows(uint32_t layer, uint32_t kv_head, mri_kv_block& view, uint32_t offset,
                   uint32_t n, const float* k, const float* v);
  void make_page_index(uint32_t layer, uint32_t kv_head, mri_kv_block& view);

  const mri_kv_block* before(size_t block) const {
    return block > 0 ? &views_[block - 1] : nullptr;
  }
  bool is_settled(size_t block) const;
  std::vector<mri_tier_action> ask_policy(uint32_t why, uint64_t wanted_bytes) const;
  bool run_action(const mri_tier_action& action);
  bool move_block(size_t block, const mri_tier_action& action);
  bool demote_to_warm(size_t block);
  bool demote_to_cold(size_t block);
  bool promote(size_t block, uint32_t tier);
  void set_body(size_t block, const uint8_t* body, size_t page_bytes, uint32_t format,
                uint32_t tier);
  size_t find_block(uint64_t id) const;
  bool tears_summary(size_t block, size_t first, size_t end) const;
  void evict_block(size_t block, Evicted& evicted);
  void evict_tokens(uint64_t first, uint64_t end, Evicted& evicted);

  uint64_t summary_pages_max(uint32_t why, std::span<const mri_tier_action> actions) const;
  void summarise_segments(uint64_t pages_max);
  bool is_ready_for_summary(size_t segment) const;
  bool make_summary(size_t segment, uint64_t& pages_max);
  bool start_summary(size_t segment, uint32_t pairs_max);
  void make_summary_page(size_t segment, uint32_t page, const mri_kv_summary& view,
                         uint32_t pairs_max) const;
  void gather_segment(size_t segment, uint32_t layer, uint32_t kv_head, std::vector<float>& k,
                      std::vector<float>& v) const;
  void drop_summary(size_t segment);

  const KvStore& store_;
  PoolAccount account_;  // outlives the blocks
  const std::vector<mri_token_range> pinned_;
  uint32_t n_tokens_ = 0;
  uint32_t appended_ = 0;        // by the last append()
  uint32_t settled_tokens_ = 0;  // written in all layers
  size_t held_block_ = SIZE_MAX;
  bool summaries_failed_ = false;  // the plugin is not asked again for this context
  uint32_t hot_tokens_ = 0;
  uint64_t next_id_ = 1;
  uint64_t epoch_ = 1;
  uint64_t step_ = 0;
  double mass_queries_ = 0;  // whose attention was measured, older ones counted less
  std::vector<KvBlockMemory> blocks_;
  std::vector<mri_kv_block> views_;
  std::vector<PoolMemory> summaries_;  // bodies, then biases; by position in summary_views_
  std::vector<mri_kv_summary> summary_views_;
  struct Unfinished {
    PoolMemory memory;  // null: there is none
    size_t segment = 0;
    uint32_t n_pages = 0;  // that are made
    mri_kv_summary view{};
  };
  Unfinished unfinished_;  // the summary that steps are making bit by bit
};

}  // namespace varve::light
