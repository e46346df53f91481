#include "adapters/light/kv/cache.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "kernels/number.h"
#include "kernels/rope.h"
#include "mri/sdk/error.hpp"

namespace varve::light {
namespace {

// What an evicted block's index points to: never read, but never null.
alignas(64) constexpr uint8_t kNoIndex[64] = {};

constexpr uint32_t mask_of(uint32_t first, uint32_t n) {
  return static_cast<uint32_t>(((uint64_t{1} << n) - 1) << first);
}

bool overlaps(std::span<const mri_token_range> ranges, uint64_t first, uint64_t end) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const mri_token_range& r) {
    return r.first < first ? r.count > first - r.first : r.count > 0 && r.first < end;
  });
}

}  // namespace

KvCache::KvCache(const KvStore& store, uint64_t budget_bytes,
                 std::span<const mri_token_range> pinned)
    : store_(store), account_{budget_bytes, 0, 0}, pinned_(pinned.begin(), pinned.end()) {}

// Kept prefixes are the first to go where memory is short.
PoolMemory KvCache::allocate(size_t bytes) {
  PoolMemory memory = store_.pool().allocate(bytes, &account_);
  if (!memory && store_.prefixes().make_room(bytes))
    memory = store_.pool().allocate(bytes, &account_);
  return memory;
}

void KvCache::add_block() {
  KvBlockMemory block;
  block.last_read = step_;
  const size_t wanted = store_.index_block_bytes() + store_.hot_block_bytes();
  for (int attempt = 0; attempt < 2 && !block.body; ++attempt) {
    if (attempt == 1) {
      block.index = PoolMemory();
      apply_policy(MRI_TIER_WHY_PRESSURE, wanted);
    }
    block.index = allocate(store_.index_block_bytes());
    if (block.index) block.body = allocate(store_.hot_block_bytes());
  }
  if (!block.body) {
    block.index = PoolMemory();
    throw mri::Error(MRI_E_NOMEM,
                     "KV memory: the next " + std::to_string(MRI_BLOCK_TOKENS) + " tokens need " +
                         std::to_string(wanted) + " bytes, this context holds " +
                         std::to_string(account_.used_bytes) + " and all contexts " +
                         std::to_string(store_.pool().used_bytes()) +
                         "; raise runtime.kv_budget_mb, or compress more (kv_tier, quantizer)");
  }
  // A partial block is attended before all its tokens are written: unwritten lanes must be finite.
  std::memset(block.body.data(), 0, block.body.size());
  mri_kv_block view{};
  view.id = next_id_++;
  view.position = static_cast<uint32_t>(blocks_.size()) * MRI_BLOCK_TOKENS;
  view.flags = MRI_BLOCK_PARTIAL;
  if (view.position == 0) view.flags |= MRI_BLOCK_SINK;
  if (overlaps(pinned_, view.position, view.position + MRI_BLOCK_TOKENS))
    view.flags |= MRI_BLOCK_PINNED;
  view.index = block.index.data();
  view.index_head_stride = static_cast<uint32_t>(store_.index_page_bytes());
  view.index_layer_stride = view.index_head_stride * store_.options().n_kv_heads;
  view.segment = UINT32_MAX;
  blocks_.push_back(std::move(block));
  views_.push_back(view);
  set_body(views_.size() - 1, blocks_.back().body.data(), store_.hot_page_bytes(),
           static_cast<uint32_t>(store_.options().hot_format), MRI_TIER_HOT);
}

void KvCache::set_body(size_t block, const uint8_t* body, size_t page_bytes, uint32_t format,
                       uint32_t tier) {
  mri_kv_block& view = views_[block];
  view.body = body;
  view.body_head_stride = static_cast<uint32_t>(page_bytes);
  view.body_layer_stride = static_cast<uint32_t>(page_bytes * store_.options().n_kv_heads);
  view.format = format;
  view.tier = static_cast<uint16_t>(tier);
}

void KvCache::append(uint32_t n) {
  const uint32_t before = n_tokens_;
  appended_ = n;
  try {
    while (n > 0) {
      const uint32_t offset = n_tokens_ % MRI_BLOCK_TOKENS;
      if (offset == 0) add_block();
      const uint32_t take = std::min(n, MRI_BLOCK_TOKENS - offset);
      mri_kv_block& view = views_.back();
      view.live_mask |= mask_of(offset, take);
      view.n_tokens = static_cast<uint16_t>(offset + take);
      if (view.n_tokens == MRI_BLOCK_TOKENS) view.flags &= ~MRI_BLOCK_PARTIAL;
      n_tokens_ += take;
      n -= take;
    }
  } catch (...) {
    truncate(before);
    throw;
  }
}

void KvCache::truncate(uint32_t n) {
  const size_t keep = (n + MRI_BLOCK_TOKENS - 1) / MRI_BLOCK_TOKENS;
  while (blocks_.size() > keep) {
    drop_block(blocks_.size() - 1);
    blocks_.pop_back();
    views_.pop_back();
  }
  n_tokens_ = n;
  settled_tokens_ = std::min(settled_tokens_, n);
  const uint32_t offset = n % MRI_BLOCK_TOKENS;
  if (offset == 0) return;
  mri_kv_block& view = views_.back();
  view.live_mask &= mask_of(0, offset);
  view.n_tokens = static_cast<uint16_t>(offset);
  view.flags |= MRI_BLOCK_PARTIAL;
}

void KvCache::drop_block(size_t block) {
  drop_summary(block * MRI_BLOCK_TOKENS / MRI_SEGMENT_TOKENS);
  forget_pages(block);
}

void KvCache::forget_pages(size_t block) {
  blocks_[block] = KvBlockMemory{};
  views_[block].body = nullptr;
  views_[block].index = kNoIndex;
  views_[block].index_layer_stride = views_[block].index_head_stride = 0;
}

void KvCache::write(uint32_t layer, uint32_t kv_head, uint32_t first, uint32_t n, const float* k,
                    size_t k_stride, const float* v, size_t v_stride) {
  const uint32_t dim = store_.options().head_dim;
  const mri_rope& rope = store_.rope();
  const uint32_t half = rope.rotary_dim / 2;
  const uint32_t offset = first % MRI_BLOCK_TOKENS;
  thread_local std::vector<float> scratch;
  scratch.resize(2 * MRI_BLOCK_TOKENS * dim);
  float* keys = scratch.data();
  float* values = keys + MRI_BLOCK_TOKENS * dim;
  for (uint32_t t = 0; t < n; ++t) {
    std::copy_n(k + t * k_stride, dim, keys + t * dim);
    kernels::cpu::rope_rows(keys + t * dim, 1, dim, rope.rotary_dim,
                            rope.fine_cos + (offset + t) * half,
                            rope.fine_sin + (offset + t) * half);
    std::copy_n(v + t * v_stride, dim, values + t * dim);
  }
  mri_kv_block& view = views_[first / MRI_BLOCK_TOKENS];
  auto* index = const_cast<uint8_t*>(page_index(view, layer, kv_head));
  auto* body = const_cast<uint8_t*>(page_body(view, layer, kv_head));
  if (n == MRI_BLOCK_TOKENS) {
    kernels::cpu::make_index(keys, view.live_mask, dim, index);
    kernels::cpu::encode(store_.options().hot_format, keys, values, dim, index, body);
    return;
  }
  append_rows(layer, kv_head, view, offset, n, keys, values);
  if (offset + n == MRI_BLOCK_TOKENS) make_page_index(layer, kv_head, view);
}

// Single tokens go straight into the page's interleaved layout (mri/kv_view.h).
void KvCache::append_rows(uint32_t layer, uint32_t kv_head, mri_kv_block& view, uint32_t offset,
                          uint32_t n, const float* k, const float* v) {
  const uint32_t dim = store_.options().head_dim;
  auto* body = const_cast<uint8_t*>(page_body(view, layer, kv_head));
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t t = offset + i;
    if (store_.options().hot_format == kernels::KvFormat::kF32) {
      float* keys = reinterpret_cast<float*>(body);
      float* values = keys + dim * MRI_BLOCK_TOKENS;
      for (uint32_t c = 0; c < dim; ++c) keys[c * MRI_BLOCK_TOKENS + t] = k[i * dim + c];
      std::copy_n(v + i * dim, dim, values + t * dim);
    } else {
      auto* keys = reinterpret_cast<uint16_t*>(body);
      uint16_t* values = keys + dim * MRI_BLOCK_TOKENS;
      for (uint32_t c = 0; c < dim; ++c) {
        keys[(c / 2 * MRI_BLOCK_TOKENS + t) * 2 + c % 2] = kernels::bf16_from_f32(k[i * dim + c]);
        values[(t / 2 * dim + c) * 2 + t % 2] = kernels::bf16_from_f32(v[i * dim + c]);
      }
    }
  }
}

void KvCache::make_page_index(uint32_t layer, uint32_t kv_head, mri_kv_block& view) {
  thread_local std::vector<float> keys;
  keys.resize(MRI_BLOCK_TOKENS * store_.options().head_dim);
  store_.decode(view, nullptr, layer, kv_head, keys.data(), nullptr);
  kernels::cpu::make_index(keys.data(), view.live_mask, store_.options().head_dim,
                           const_cast<uint8_t*>(page_index(view, layer, kv_head)));
}

uint64_t KvCache::block_bytes(size_t block) const {
  uint64_t bytes = blocks_[block].index.size() + blocks_[block].body.size();
  const uint32_t segment = views_[block].segment;
  if (segment != UINT32_MAX)
    bytes += summaries_[segment].size() * MRI_BLOCK_TOKENS / MRI_SEGMENT_TOKENS;
  return bytes;
}

mri_kv_usage KvCache::usage() const {
  mri_kv_usage usage{};
  uint64_t* bytes[] = {&usage.hot_bytes, &usage.warm_bytes, &usage.cold_bytes};
  uint64_t* tokens[] = {&usage.hot_tokens, &usage.warm_tokens, &usage.cold_tokens};
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const uint32_t tier = views_[i].tier;
    *bytes[tier] += block_bytes(i);
    *tokens[tier] += static_cast<uint64_t>(std::popcount(views_[i].live_mask));
    if (blocks_[i].slot != nullptr) usage.backing_bytes += store_.backing().slot_bytes();
  }
  usage.bf16_bytes = uint64_t{n_tokens_} * store_.pages() * store_.options().head_dim * 4;
  return usage;
}

void KvCache::note_reads(std::span<const uint32_t> blocks) {
  ++step_;
  for (uint32_t block : blocks) {
    if (blocks_[block].last_read != step_ && views_[block].tier == MRI_TIER_COLD && appended_ == 1)
      ++blocks_[block].reads;
    blocks_[block].last_read = step_;
  }
}

void KvCache::note_mass(std::span<const float> received, uint32_t n_queries) {
  const double kept = std::exp2(-static_cast<double>(n_queries) / store_.options().mass_tokens);
  mass_queries_ = mass_queries_ * kept + store_.mass_weight(n_queries);
  for (size_t i = 0; i < received.size(); ++i)
    blocks_[i].mass = blocks_[i].mass * kept + static_cast<double>(received[i]);
}

}  // namespace varve::light
