// Eviction at the caller's wish. By default it never tears a block: a quantised block goes whole or
// stays.
#include <algorithm>
#include <bit>

#include "adapters/light/kv/cache.h"

namespace varve::light {
namespace {

constexpr uint64_t round_down(uint64_t value, uint64_t unit) { return value / unit * unit; }
constexpr uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

struct Span {
  uint64_t first, end;
};

Span widen(Span span, uint32_t granularity) {
  switch (granularity) {
    case MRI_EVICT_TOKEN:
      return span;
    case MRI_EVICT_BLOCK:
      return {round_down(span.first, MRI_BLOCK_TOKENS), round_up(span.end, MRI_BLOCK_TOKENS)};
    case MRI_EVICT_SEGMENT:
      return {round_down(span.first, MRI_SEGMENT_TOKENS), round_up(span.end, MRI_SEGMENT_TOKENS)};
    default: {
      const uint64_t first = round_up(span.first, MRI_BLOCK_TOKENS);
      return {first, std::max(first, round_down(span.end, MRI_BLOCK_TOKENS))};
    }
  }
}

}  // namespace

KvCache::Evicted KvCache::evict(std::span<const mri_token_range> ranges, uint32_t granularity) {
  Evicted evicted;
  const uint64_t before = account_.used_bytes;
  for (const mri_token_range& range : ranges) {
    const uint64_t first = std::min<uint64_t>(range.first, n_tokens_);
    const uint64_t end = first + std::min<uint64_t>(range.count, n_tokens_ - first);
    if (first == end) continue;
    const Span span = widen({first, end}, granularity);
    if (granularity == MRI_EVICT_TOKEN) {
      evict_tokens(span.first, span.end, evicted);
      continue;
    }
    const uint64_t last =
        std::min<uint64_t>(round_up(span.end, MRI_BLOCK_TOKENS) / MRI_BLOCK_TOKENS, blocks_.size());
    const uint64_t start = span.first / MRI_BLOCK_TOKENS;
    for (uint64_t block = start; block < last; ++block) {
      const uint32_t flags = views_[block].flags;
      if ((flags & (MRI_BLOCK_SINK | MRI_BLOCK_PINNED | MRI_BLOCK_PARTIAL)) != 0 ||
          tears_summary(block, start, last)) {
        ++evicted.n_refused;
      } else {
        evict_block(block, evicted);
      }
    }
  }
  evicted.bytes = before - account_.used_bytes;
  ++epoch_;
  return evicted;
}

// Would evicting `block`, with no more than blocks [first, end), take the summary from blocks
// outside that live in it alone?
bool KvCache::tears_summary(size_t block, size_t first, size_t end) const {
  if (views_[block].segment == UINT32_MAX) return false;
  constexpr size_t kSegmentBlocks = MRI_SEGMENT_TOKENS / MRI_BLOCK_TOKENS;
  const size_t start = block / kSegmentBlocks * kSegmentBlocks;
  for (size_t other = start; other < start + kSegmentBlocks; ++other) {
    if (other >= first && other < end) continue;
    if ((views_[other].flags & MRI_BLOCK_EVICTED) != 0 && views_[other].live_mask != 0) return true;
  }
  return false;
}

void KvCache::evict_block(size_t block, Evicted& evicted) {
  if (views_[block].live_mask == 0) return;
  evicted.n_tokens += static_cast<uint64_t>(std::popcount(views_[block].live_mask));
  drop_block(block);
  views_[block].live_mask = 0;
  views_[block].flags |= MRI_BLOCK_EVICTED;
  views_[block].tier = MRI_TIER_COLD;
}

void KvCache::evict_tokens(uint64_t first, uint64_t end, Evicted& evicted) {
  const size_t first_whole = round_up(first, MRI_BLOCK_TOKENS) / MRI_BLOCK_TOKENS;
  const size_t end_whole = end / MRI_BLOCK_TOKENS;
  while (first < end) {
    const size_t block = first / MRI_BLOCK_TOKENS;
    const uint64_t stop = std::min<uint64_t>(end, (block + 1) * MRI_BLOCK_TOKENS);
    mri_kv_block& view = views_[block];
    uint32_t mask = 0;
    for (uint64_t t = first; t < stop; ++t) mask |= 1u << (t % MRI_BLOCK_TOKENS);
    first = stop;
    if ((view.flags & (MRI_BLOCK_SINK | MRI_BLOCK_PINNED)) != 0 ||
        tears_summary(block, first_whole, end_whole)) {
      ++evicted.n_refused;
      continue;
    }
    if ((view.live_mask & ~mask) == 0 && (view.flags & MRI_BLOCK_PARTIAL) == 0) {
      evict_block(block, evicted);
      continue;
    }
    evicted.n_tokens += static_cast<uint64_t>(std::popcount(view.live_mask & mask));
    view.live_mask &= ~mask;
    // A pair may hold what was evicted; it is made anew from what is left when the tiers are next
    // looked at.
    drop_summary(block * MRI_BLOCK_TOKENS / MRI_SEGMENT_TOKENS);
  }
}

}  // namespace varve::light
