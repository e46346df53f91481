#include "adapters/light/kernel_table.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/gemm.h"
#include "kernels/merge.h"
#include "kernels/page.h"
#include "kernels/top_k.h"
#include "mri/sdk/error.hpp"

namespace varve::light {
namespace {

constexpr int32_t kSegmentBlocks = MRI_SEGMENT_TOKENS / MRI_BLOCK_TOKENS;

// Pages of one call. Bodies that no kernel knows are decoded into `decoded`, which grows before any
// pointer into it is taken.
struct PageList {
  struct Foreign {
    size_t page;     // in pages
    uint32_t block;  // of the sequence
  };
  std::vector<kernels::KvPage> pages;
  std::vector<Foreign> foreign;
  std::vector<uint8_t> decoded;
  std::vector<float> scratch;
};

PageList& page_list() {
  thread_local PageList list;
  list.pages.clear();
  list.foreign.clear();
  return list;
}

kernels::QueryTile tile_of(const mri_attn_req& req, const mri_attn_item& item) {
  const auto& runtime = *static_cast<const AttentionRuntime*>(req.runtime);
  const mri_attn_seq& seq = req.seqs[item.seq];
  const uint32_t group = req.n_heads / req.n_kv_heads;
  const size_t row = seq.first_row + item.first_query;
  kernels::QueryTile tile{};
  tile.q = req.q + (row * req.n_heads + static_cast<size_t>(item.kv_head) * group) * req.head_dim;
  tile.q_stride = static_cast<size_t>(req.n_heads) * req.head_dim;
  tile.n_queries = item.n_queries;
  tile.group = group;
  tile.offset = (seq.position + item.first_query) % MRI_BLOCK_TOKENS;
  tile.scale = req.scale;
  tile.compute = runtime.compute;
  tile.rope = &runtime.rope;
  return tile;
}

bool valid(const mri_attn_req* req, const mri_attn_item* item) {
  if (req == nullptr || item == nullptr || req->runtime == nullptr || item->seq >= req->n_seqs)
    return false;
  const mri_attn_seq& seq = req->seqs[item->seq];
  const auto& rope = static_cast<const AttentionRuntime*>(req->runtime)->rope;
  const uint32_t offset = (seq.position + item->first_query) % MRI_BLOCK_TOKENS;
  return item->kv_head < req->n_kv_heads && item->n_queries > 0 &&
         item->first_query < seq.n_queries &&
         item->n_queries <= seq.n_queries - item->first_query &&
         offset + item->n_queries <= rope.n_fine;
}

bool valid_distance(const mri_attn_req& req, int32_t distance) {
  const auto& rope = static_cast<const AttentionRuntime*>(req.runtime)->rope;
  const auto limit = static_cast<int32_t>(rope.n_coarse);
  return distance < limit && distance > -limit;
}

void add_block(const mri_attn_req& req, const mri_attn_item& item, uint32_t block, int32_t distance,
               float log_weight, PageList& list) {
  const mri_kv_block& view = req.seqs[item.seq].blocks[block];
  if (view.live_mask == 0 || view.body == nullptr) return;
  if (view.format >= MRI_KV_CUSTOM) list.foreign.push_back({list.pages.size(), block});
  list.pages.push_back({page_index(view, req.layer, item.kv_head),
                        page_body(view, req.layer, item.kv_head), nullptr, view.live_mask,
                        static_cast<kernels::KvFormat>(view.format), distance, log_weight});
}

bool add_entry(const mri_attn_req& req, const mri_attn_item& item, const mri_attn_entry& entry,
               PageList& list) {
  const mri_attn_seq& seq = req.seqs[item.seq];
  const bool is_block = entry.what == MRI_ATTN_BLOCKS;
  const uint32_t n = is_block ? seq.n_blocks : seq.n_summaries;
  const int32_t step = is_block ? 1 : kSegmentBlocks;
  if (entry.index > n || entry.count > n - entry.index) return false;
  for (uint32_t i = 0; i < entry.count; ++i) {
    const int32_t distance = entry.distance - static_cast<int32_t>(i) * step;
    if (!valid_distance(req, distance)) return false;
    if (is_block) {
      add_block(req, item, entry.index + i, distance, entry.log_weight, list);
      continue;
    }
    const mri_kv_summary& summary = seq.summaries[entry.index + i];
    const uint8_t* body =
        summary.body + req.layer * summary.layer_stride + item.kv_head * summary.head_stride;
    const float* bias =
        summary.bias + (static_cast<size_t>(req.layer) * req.n_kv_heads + item.kv_head) *
                           summary.n_pages * MRI_BLOCK_TOKENS;
    for (uint32_t p = 0; p < summary.n_pages; ++p) {
      list.pages.push_back({nullptr, body + p * summary.page_stride, bias + p * MRI_BLOCK_TOKENS,
                            UINT32_MAX, kernels::KvFormat::kBf16, distance, entry.log_weight});
    }
  }
  return true;
}

// Replaces bodies in a format that only the stack's quantizer knows by f32 ones.
void decode_foreign(const mri_attn_req& req, const mri_attn_item& item, PageList& list) {
  if (list.foreign.empty()) return;
  const KvStore& store = *static_cast<const AttentionRuntime*>(req.runtime)->store;
  const mri_kv_block* blocks = req.seqs[item.seq].blocks;
  const size_t dim = req.head_dim;
  const size_t bytes = kernels::body_bytes(kernels::KvFormat::kF32, dim);
  list.decoded.resize(list.foreign.size() * bytes);
  list.scratch.resize(2 * MRI_BLOCK_TOKENS * dim);
  float* k = list.scratch.data();
  float* v = k + MRI_BLOCK_TOKENS * dim;
  uint8_t* out = list.decoded.data();
  for (const PageList::Foreign& foreign : list.foreign) {
    const mri_kv_block* block = blocks + foreign.block;
    store.decode(*block, foreign.block > 0 ? block - 1 : nullptr, req.layer, item.kv_head, k, v);
    kernels::KvPage& page = list.pages[foreign.page];
    kernels::cpu::encode(kernels::KvFormat::kF32, k, v, dim, page.index, out);
    page.body = out;
    page.format = kernels::KvFormat::kF32;
    out += bytes;
  }
}

uint64_t table_index_bytes(void*, uint32_t head_dim) { return kernels::index_bytes(head_dim); }

uint64_t table_body_bytes(void*, uint32_t format, uint32_t head_dim) {
  const bool fused = format == MRI_KV_F32 || format == MRI_KV_BF16 || format == MRI_KV_INT8;
  return fused ? kernels::body_bytes(static_cast<kernels::KvFormat>(format), head_dim) : 0;
}

void table_make_index(void*, const float* k, uint32_t live_mask, uint32_t head_dim,
                      uint8_t* index) {
  kernels::cpu::make_index(k, live_mask, head_dim, index);
}

mri_status table_encode(void* self, uint32_t format, const float* k, const float* v,
                        uint32_t head_dim, const uint8_t* index, uint8_t* body) {
  if (table_body_bytes(self, format, head_dim) == 0) return MRI_E_UNSUPPORTED;
  kernels::cpu::encode(static_cast<kernels::KvFormat>(format), k, v, head_dim, index, body);
  return MRI_OK;
}

mri_status table_decode(void* self, uint32_t format, const uint8_t* index, const uint8_t* body,
                        uint32_t head_dim, float* k, float* v) {
  if (table_body_bytes(self, format, head_dim) == 0) return MRI_E_UNSUPPORTED;
  kernels::cpu::decode(static_cast<kernels::KvFormat>(format), index, body, head_dim, k, v);
  return MRI_OK;
}

mri_status table_score_blocks(void*, const mri_attn_req* req, const mri_attn_item* item,
                              uint32_t how, const uint32_t* blocks, const int32_t* distances,
                              uint64_t n, uint32_t query_step, float* scores) {
  return mri::guard(nullptr, [&]() -> mri_status {
    if (!valid(req, item) || query_step == 0 || how > MRI_SCORE_SKETCH) return MRI_E_ARG;
    PageList& list = page_list();
    const mri_attn_seq& seq = req->seqs[item->seq];
    for (uint64_t i = 0; i < n; ++i) {
      if (blocks[i] >= seq.n_blocks || !valid_distance(*req, distances[i])) return MRI_E_ARG;
      const mri_kv_block& view = seq.blocks[blocks[i]];
      if ((view.flags & (MRI_BLOCK_PARTIAL | MRI_BLOCK_EVICTED)) != 0) return MRI_E_ARG;
      list.pages.push_back({page_index(view, req->layer, item->kv_head), nullptr, nullptr,
                            view.live_mask, kernels::KvFormat::kBf16, distances[i], 0.0f});
    }
    kernels::cpu::score_pages(tile_of(*req, *item), list.pages.data(), n,
                              static_cast<kernels::Score>(how), query_step, scores);
    return MRI_OK;
  });
}

uint64_t table_top_k(void*, const float* scores, uint64_t n, uint64_t k, uint32_t* out) {
  return kernels::cpu::top_k(scores, n, k, out);
}

mri_status table_attend(void*, const mri_attn_req* req, const mri_attn_item* item,
                        const mri_attn_entry* entries, uint64_t n_entries, float* o,
                        uint64_t o_stride, float* lse, uint64_t lse_stride) {
  return mri::guard(nullptr, [&]() -> mri_status {
    if (!valid(req, item)) return MRI_E_ARG;
    PageList& list = page_list();
    for (uint64_t i = 0; i < n_entries; ++i) {
      if (!add_entry(*req, *item, entries[i], list)) return MRI_E_ARG;
    }
    decode_foreign(*req, *item, list);
    kernels::cpu::attend(tile_of(*req, *item), list.pages.data(), list.pages.size(), o, o_stride,
                         lse, lse_stride);
    return MRI_OK;
  });
}

void table_merge(void*, uint64_t n, uint32_t head_dim, float* o, float* lse, const float* o2,
                 const float* lse2) {
  for (uint64_t i = 0; i < n; ++i)
    kernels::cpu::merge(o + i * head_dim, lse + i, o2 + i * head_dim, lse2[i], head_dim);
}

// Has no status to return: a product that cannot be made is NaN, never an exception into a plugin.
void table_matmul_nt(void*, uint64_t m, uint64_t n, uint64_t k, const float* a, const float* b,
                     float* c) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    std::fill_n(c, m * n, 0.0f);
    return;
  }
  const mri_status status = mri::guard(nullptr, [&] {
    kernels::GemmShape shape;
    shape.m = m;
    shape.n = n;
    shape.k = shape.lda = shape.ldw = k;
    shape.ldc = n;
    shape.type = kernels::GemmType::kF32;
    kernels::cpu::gemm(shape, a, b, c);
  });
  if (status != MRI_OK) std::fill_n(c, m * n, std::numeric_limits<float>::quiet_NaN());
}

}  // namespace

const mri_kernels_v1* kernel_table() {
  static constexpr mri_kernels_v1 kTable = {sizeof(mri_kernels_v1),
                                            0,
                                            nullptr,
                                            table_index_bytes,
                                            table_body_bytes,
                                            table_make_index,
                                            table_encode,
                                            table_decode,
                                            table_score_blocks,
                                            table_top_k,
                                            table_attend,
                                            table_merge,
                                            table_matmul_nt};
  return &kTable;
}

}  // namespace varve::light
