// Prefixes out of contexts, and contexts out of prefixes.
#include <algorithm>
#include <string>

#include "adapters/light/kv/cache.h"
#include "mri/sdk/error.hpp"

namespace varve::light {
namespace {

constexpr size_t kSegmentBlocks = MRI_SEGMENT_TOKENS / MRI_BLOCK_TOKENS;

// Only a summary stands for its tokens.
bool is_summary_only(const mri_kv_block& view) {
  return (view.flags & MRI_BLOCK_EVICTED) != 0 && view.live_mask != 0;
}

size_t whole_blocks(const std::vector<mri_kv_block>& views, size_t n) {
  n = std::min(n, views.size());
  const size_t segment = n / kSegmentBlocks * kSegmentBlocks;
  return std::any_of(views.begin() + segment, views.begin() + n, is_summary_only) ? segment : n;
}

// Of `from`, the summaries of segments that lie wholly in `views`, which are made to name them:
// hold(s) takes the memory of number s. Of a part of a segment, a summary would stand for too much.
template <class Hold>
std::vector<mri_kv_summary> whole_summaries(const std::vector<mri_kv_summary>& from,
                                            std::vector<mri_kv_block>& views, Hold hold) {
  for (mri_kv_block& view : views) view.segment = UINT32_MAX;
  std::vector<mri_kv_summary> whole;
  for (size_t s = 0; s < from.size(); ++s) {
    const size_t first = from[s].position / MRI_BLOCK_TOKENS;
    if (first + kSegmentBlocks > views.size()) continue;
    for (size_t i = first; i < first + kSegmentBlocks; ++i)
      views[i].segment = static_cast<uint32_t>(whole.size());
    hold(s);
    whole.push_back(from[s]);
  }
  return whole;
}

}  // namespace

size_t fork_blocks(const KvPrefix& prefix, size_t n) { return whole_blocks(prefix.views, n); }

size_t KvCache::prefix_blocks(size_t n) const {
  n = std::min<size_t>({n, views_.size(), settled_tokens_ / MRI_BLOCK_TOKENS});
  size_t full = 0;
  while (full < n && views_[full].live_mask == UINT32_MAX) ++full;
  return whole_blocks(views_, full);
}

std::shared_ptr<KvPrefix> KvCache::prefix(size_t n_blocks) const {
  auto prefix = std::make_shared<KvPrefix>();
  for (size_t i = 0; i < n_blocks; ++i) {
    const KvBlockMemory& block = blocks_[i];
    prefix->blocks.push_back({block.index.keep(), block.body.keep(), block.slot, block.last_read,
                              block.reads, block.mass});
    prefix->views.push_back(views_[i]);
  }
  prefix->summary_views = whole_summaries(summary_views_, prefix->views, [&](size_t s) {
    prefix->summaries.push_back(summaries_[s].keep());
  });
  prefix->step = step_;
  prefix->epoch = epoch_;
  prefix->mass_queries = mass_queries_;
  prefix->hot_tokens = hot_tokens_;
  prefix->summaries_failed = summaries_failed_;
  return prefix;
}

KvCache::KvCache(const KvStore& store, uint64_t budget_bytes, const KvPrefix& prefix,
                 size_t n_blocks)
    : store_(store),
      account_{budget_bytes, 0, 0},
      n_tokens_(static_cast<uint32_t>(n_blocks * MRI_BLOCK_TOKENS)),
      settled_tokens_(n_tokens_),
      summaries_failed_(prefix.summaries_failed),
      hot_tokens_(prefix.hot_tokens),
      next_id_(prefix.views[n_blocks - 1].id + 1),
      epoch_(prefix.epoch),
      step_(prefix.step),
      mass_queries_(prefix.mass_queries),
      views_(prefix.views.begin(), prefix.views.begin() + n_blocks) {
  const auto share = [this](const PoolMemory& memory) {
    PoolMemory mine = memory.share(&account_);
    if (memory && !mine) {
      throw mri::Error(MRI_E_NOMEM, "the prefix is larger than the context's budget of " +
                                        std::to_string(account_.budget_bytes) + " bytes");
    }
    return mine;
  };
  for (size_t i = 0; i < n_blocks; ++i) {
    const KvBlockMemory& block = prefix.blocks[i];
    blocks_.push_back({share(block.index), share(block.body), block.slot, block.last_read,
                       block.reads, block.mass});
  }
  summary_views_ = whole_summaries(prefix.summary_views, views_, [&](size_t s) {
    summaries_.push_back(share(prefix.summaries[s]));
  });
}

uint64_t KvCache::shrink(uint64_t wanted_bytes) {
  const int64_t before = account_.returned_bytes;
  apply_policy(MRI_TIER_WHY_PRESSURE, wanted_bytes);
  return static_cast<uint64_t>(std::max<int64_t>(0, account_.returned_bytes - before));
}

}  // namespace varve::light
