// Summaries: a complete segment that has left hot gets pairs that stand for its tokens where
// attention does not read them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "adapters/light/kv/cache.h"
#include "kernels/rope.h"
#include "mri/sdk/error.hpp"

namespace varve::light {
namespace {

constexpr size_t kSegmentBlocks = MRI_SEGMENT_TOKENS / MRI_BLOCK_TOKENS;

bool all_finite(const float* values, size_t n) {
  return std::all_of(values, values + n, [](float x) { return std::isfinite(x); });
}

}  // namespace

// All its blocks have left hot or never will, none is being filled or held, and it has tokens that
// are not read exactly anyway.
bool KvCache::is_ready_for_summary(size_t segment) const {
  if (held_block_ / kSegmentBlocks == segment) return false;
  bool any = false;
  for (size_t block = segment * kSegmentBlocks; block < (segment + 1) * kSegmentBlocks; ++block) {
    const mri_kv_block& view = views_[block];
    if ((view.flags & MRI_BLOCK_PARTIAL) != 0 || view.segment != UINT32_MAX) return false;
    if ((view.flags & (MRI_BLOCK_SINK | MRI_BLOCK_PINNED)) != 0) continue;
    if (view.tier == MRI_TIER_HOT) return false;
    any = any || view.live_mask != 0;
  }
  return any;
}

void KvCache::summarise_segments(uint64_t pages_max) {
  if (!store_.summary || summaries_failed_) return;
  try {
    for (size_t segment = 0; (segment + 1) * MRI_SEGMENT_TOKENS <= settled_tokens_; ++segment) {
      if (pages_max == 0) return;
      if (is_ready_for_summary(segment) && !make_summary(segment, pages_max)) return;
    }
  } catch (const std::exception& e) {
    summaries_failed_ = true;
    unfinished_ = {};
    store_.host().log(MRI_LOG_ERROR,
                      std::string("this context goes on without further summaries: ") + e.what());
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
    const size_t block = segment * kSegmentBlocks + j;
    const mri_kv_block& view = views_[block];
    if ((view.flags & (MRI_BLOCK_SINK | MRI_BLOCK_PINNED | MRI_BLOCK_EVICTED)) != 0) continue;
    store_.decode(view, before(block), layer, kv_head, keys, values);
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

// Goes on with it, for at most pages_max pages, which are counted off. False when there is no
// memory for it.
bool KvCache::make_summary(size_t segment, uint64_t& pages_max) {
  const uint32_t pairs_max =
      store_.summary.table->pairs_max(store_.summary.self, MRI_SEGMENT_TOKENS);
  if (pairs_max == 0) return true;
  if (pairs_max > MRI_SEGMENT_TOKENS) {
    throw mri::Error(MRI_E_INTERNAL, "summary: pairs_max says " + std::to_string(pairs_max) +
                                         " pairs for " + std::to_string(MRI_SEGMENT_TOKENS) +
                                         " tokens; expected no more than the tokens");
  }
  const bool goes_on = unfinished_.memory && unfinished_.segment == segment;
  if (!goes_on && !start_summary(segment, pairs_max)) return false;
  const uint64_t n = std::min<uint64_t>(pages_max, store_.pages() - unfinished_.n_pages);
  store_.host().parallel_for(n, [&](uint64_t i, uint32_t) {
    make_summary_page(segment, unfinished_.n_pages + static_cast<uint32_t>(i), unfinished_.view,
                      pairs_max);
  });
  pages_max -= n;
  unfinished_.n_pages += static_cast<uint32_t>(n);
  if (unfinished_.n_pages < store_.pages()) return true;
  summaries_.push_back(std::move(unfinished_.memory));
  summary_views_.push_back(unfinished_.view);
  unfinished_ = {};
  for (size_t j = 0; j < kSegmentBlocks; ++j) {
    views_[segment * kSegmentBlocks + j].segment = static_cast<uint32_t>(summary_views_.size() - 1);
  }
  return true;
}

bool KvCache::start_summary(size_t segment, uint32_t pairs_max) {
  unfinished_ = {};
  mri_kv_summary view{};
  view.position = static_cast<uint32_t>(segment * MRI_SEGMENT_TOKENS);
  view.n_tokens = MRI_SEGMENT_TOKENS;
  view.n_pages = (pairs_max + MRI_BLOCK_TOKENS - 1) / MRI_BLOCK_TOKENS;
  view.page_stride = kernels::body_bytes(kernels::KvFormat::kBf16, store_.options().head_dim);
  view.head_stride = view.n_pages * view.page_stride;
  view.layer_stride = store_.options().n_kv_heads * view.head_stride;
  const size_t body_bytes = store_.pages() * view.head_stride;
  const size_t n_bias = size_t{store_.pages()} * view.n_pages * MRI_BLOCK_TOKENS;
  PoolMemory memory = allocate(body_bytes + n_bias * sizeof(float));
  if (!memory) return false;
  view.body = memory.data();
  auto* bias = reinterpret_cast<float*>(memory.data() + body_bytes);
  std::fill_n(bias, n_bias, -std::numeric_limits<float>::infinity());
  view.bias = bias;
  unfinished_.memory = std::move(memory);
  unfinished_.segment = segment;
  unfinished_.view = view;
  return true;
}

// Pairs and biases of one layer and KV head, into the memory that `view` describes. Throws
// mri::Error when the plugin fails or its answer is of no use.
void KvCache::make_summary_page(size_t segment, uint32_t page, const mri_kv_summary& view,
                                uint32_t pairs_max) const {
  const uint32_t heads = store_.options().n_kv_heads, dim = store_.options().head_dim;
  const size_t n_slots = size_t{view.n_pages} * MRI_BLOCK_TOKENS;
  thread_local std::vector<float> k, v, out;
  gather_segment(segment, page / heads, page % heads, k, v);
  out.assign(2 * n_slots * dim, 0.0f);
  float* out_k = out.data();
  float* out_v = out_k + n_slots * dim;
  float* bias = const_cast<float*>(view.bias) + page * n_slots;
  mri_summary_make_req req{};
  req.hdr.struct_size = sizeof(req);
  req.k = k.data();
  req.v = v.data();
  req.seed = segment * store_.pages() + page;
  req.n_tokens = static_cast<uint32_t>(k.size() / dim);
  req.head_dim = dim;
  req.layer = page / heads;
  req.kv_head = page % heads;
  mri_summary_make_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  rsp.k = out_k;
  rsp.v = out_v;
  rsp.log_count = bias;
  rsp.pairs_capacity = pairs_max;
  mri_error err{};
  err.struct_size = sizeof(err);
  check_plugin_call(store_.summary.table->make(store_.summary.self, &req, &rsp, &err), err,
                    "summary");
  const size_t n = rsp.n_pairs;
  if (n > pairs_max || !all_finite(bias, n) || !all_finite(out_k, n * dim) ||
      !all_finite(out_v, n * dim)) {
    throw mri::Error(MRI_E_INTERNAL, "summary: found " + std::to_string(n) + " pairs for layer " +
                                         std::to_string(req.layer) + "; expected at most " +
                                         std::to_string(pairs_max) + ", all of finite numbers");
  }
  std::fill(bias + n, bias + n_slots, -std::numeric_limits<float>::infinity());
  std::fill(out_k + n * dim, out_v, 0.0f);
  std::fill(out_v + n * dim, out_v + n_slots * dim, 0.0f);
  auto* body = const_cast<uint8_t*>(view.body) + page * view.head_stride;
  for (size_t p = 0; p < view.n_pages; ++p) {
    const size_t at = p * MRI_BLOCK_TOKENS * dim;
    kernels::cpu::encode(kernels::KvFormat::kBf16, out_k + at, out_v + at, dim, nullptr,
                         body + p * view.page_stride);
  }
}

void KvCache::drop_summary(size_t segment) {
  if (unfinished_.memory && unfinished_.segment == segment) unfinished_ = {};
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
