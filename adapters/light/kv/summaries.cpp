// Summaries: a complete segment that has left hot gets pairs that stand for its tokens where
// attention does not read them.
#include <algorithm>
#include <bit>
#include <limits>

#include "adapters/light/kv/cache.h"
#include "kernels/rope.h"

namespace varve::light {
namespace {

constexpr size_t kSegmentBlocks = MRI_SEGMENT_TOKENS / MRI_BLOCK_TOKENS;

}  // namespace

void KvCache::summarise_segments() {
  if (!store_.summary) return;
  for (size_t segment = 0; (segment + 1) * MRI_SEGMENT_TOKENS <= settled_tokens_; ++segment) {
    const auto first = views_.begin() + static_cast<std::ptrdiff_t>(segment * kSegmentBlocks);
    const auto end = first + kSegmentBlocks;
    const bool ready = std::all_of(first, end, [](const mri_kv_block& view) {
      const bool left_hot =
          view.tier != MRI_TIER_HOT || (view.flags & (MRI_BLOCK_SINK | MRI_BLOCK_PINNED)) != 0;
      return left_hot && (view.flags & MRI_BLOCK_PARTIAL) == 0 && view.segment == UINT32_MAX;
    });
    if (ready && !make_summary(segment)) return;
  }
}

// Live tokens of the segment in f32, keys rotated by their offset from the segment's first token.
// Sinks and pinned blocks are left out: they are always read exactly.
void KvCache::gather_segment(size_t segment, uint32_t layer, uint32_t kv_head,
                             std::vector<float>& k, std::vector<float>& v) const {
  const uint32_t dim = store_.options().head_dim;
  const mri_rope& rope = store_.rope();
  const uint32_t half = rope.rotary_dim / 2;
  thread_local std::vector<float> scratch;
  scratch.resize(2 * MRI_BLOCK_TOKENS * dim);
  float* keys = scratch.data();
  float* values = keys + MRI_BLOCK_TOKENS * dim;
  k.clear();
  v.clear();
  for (size_t j = 0; j < kSegmentBlocks; ++j) {
    const mri_kv_block& view = views_[segment * kSegmentBlocks + j];
    if ((view.flags & (MRI_BLOCK_SINK | MRI_BLOCK_PINNED | MRI_BLOCK_EVICTED)) != 0) continue;
    store_.decode(view, layer, kv_head, keys, values);
    const float* cos = rope.coarse_cos + j * half;
    const float* sin = rope.coarse_sin + j * half;
    for (uint32_t t = 0; t < MRI_BLOCK_TOKENS; ++t) {
      if ((view.live_mask >> t & 1) == 0) continue;
      float* row = keys + t * dim;
      kernels::cpu::rope_rows(row, 1, dim, rope.rotary_dim, cos, sin);
      k.insert(k.end(), row, row + dim);
      v.insert(v.end(), values + t * dim, values + (t + 1) * dim);
    }
  }
}

// False when there is no memory for it.
bool KvCache::make_summary(size_t segment) {
  const uint32_t heads = store_.options().n_kv_heads, dim = store_.options().head_dim;
  const uint32_t pairs_max =
      store_.summary.table->pairs_max(store_.summary.self, MRI_SEGMENT_TOKENS);
  if (pairs_max == 0) return true;
  const size_t n_pages = (pairs_max + MRI_BLOCK_TOKENS - 1) / MRI_BLOCK_TOKENS;
  const size_t page_bytes = kernels::body_bytes(kernels::KvFormat::kBf16, dim);
  Summary summary;
  summary.body = allocate(store_.pages() * n_pages * page_bytes);
  if (!summary.body) return false;
  summary.bias.assign(store_.pages() * n_pages * MRI_BLOCK_TOKENS,
                      -std::numeric_limits<float>::infinity());
  store_.host().parallel_for(store_.pages(), [&](uint64_t page, uint32_t) {
    thread_local std::vector<float> k, v, out;
    const auto layer = static_cast<uint32_t>(page / heads),
               head = static_cast<uint32_t>(page % heads);
    gather_segment(segment, layer, head, k, v);
    out.assign(2 * n_pages * MRI_BLOCK_TOKENS * dim, 0.0f);
    float* out_k = out.data();
    float* out_v = out_k + n_pages * MRI_BLOCK_TOKENS * dim;
    mri_summary_make_req req{};
    req.hdr.struct_size = sizeof(req);
    req.k = k.data();
    req.v = v.data();
    req.seed = segment * store_.pages() + page;
    req.n_tokens = static_cast<uint32_t>(k.size() / dim);
    req.head_dim = dim;
    req.layer = layer;
    req.kv_head = head;
    mri_summary_make_rsp rsp{};
    rsp.hdr.struct_size = sizeof(rsp);
    rsp.k = out_k;
    rsp.v = out_v;
    rsp.log_count = summary.bias.data() + page * n_pages * MRI_BLOCK_TOKENS;
    rsp.pairs_capacity = pairs_max;
    mri_error err{};
    err.struct_size = sizeof(err);
    if (req.n_tokens > 0)
      check_plugin_call(store_.summary.table->make(store_.summary.self, &req, &rsp, &err), err,
                        "summary");
    float* bias = rsp.log_count;
    std::fill(bias + std::min(rsp.n_pairs, pairs_max), bias + n_pages * MRI_BLOCK_TOKENS,
              -std::numeric_limits<float>::infinity());
    for (size_t p = 0; p < n_pages; ++p) {
      kernels::cpu::encode(kernels::KvFormat::kBf16, out_k + p * MRI_BLOCK_TOKENS * dim,
                           out_v + p * MRI_BLOCK_TOKENS * dim, dim, nullptr,
                           summary.body.data() + (page * n_pages + p) * page_bytes);
    }
  });
  mri_kv_summary view{};
  view.position = static_cast<uint32_t>(segment * MRI_SEGMENT_TOKENS);
  view.n_pages = static_cast<uint32_t>(n_pages);
  view.body = summary.body.data();
  view.bias = summary.bias.data();
  view.page_stride = page_bytes;
  view.head_stride = n_pages * page_bytes;
  view.layer_stride = heads * view.head_stride;
  for (size_t j = 0; j < kSegmentBlocks; ++j) {
    mri_kv_block& block = views_[segment * kSegmentBlocks + j];
    view.n_tokens += static_cast<uint32_t>(std::popcount(block.live_mask));
    block.segment = static_cast<uint32_t>(summaries_.size());
  }
  summaries_.push_back(std::move(summary));
  summary_views_.push_back(view);
  return true;
}

void KvCache::drop_summary(size_t segment) {
  const uint32_t gone = views_[segment * kSegmentBlocks].segment;
  if (gone == UINT32_MAX) return;
  summaries_.erase(summaries_.begin() + gone);
  summary_views_.erase(summary_views_.begin() + gone);
  for (mri_kv_block& view : views_) {
    if (view.segment == UINT32_MAX || view.segment < gone) continue;
    view.segment = view.segment == gone ? UINT32_MAX : view.segment - 1;
  }
}

}  // namespace varve::light
