#include "tools/mri_conform/ref_kernels.h"

#include <vector>

#include "kernels/attend.h"
#include "kernels/merge.h"
#include "kernels/page.h"
#include "kernels/top_k.h"

namespace varve {
namespace {

namespace ref = kernels::ref;
using kernels::KvFormat;
using kernels::KvPage;

kernels::QueryTile tile_of(const mri_attn_req& req, const mri_attn_item& item,
                           const kernels::RopeTable& rope) {
  const mri_attn_seq& seq = req.seqs[item.seq];
  const size_t group = req.n_heads / req.n_kv_heads, row = seq.first_row + item.first_query;
  const float* q = req.q + (row * req.n_heads + item.kv_head * group) * req.head_dim;
  const uint32_t offset = (seq.position + item.first_query) % MRI_BLOCK_TOKENS;
  return {q,
          size_t{req.n_heads} * req.head_dim,
          item.n_queries,
          static_cast<uint32_t>(group),
          offset,
          req.scale,
          kernels::Compute::kF32,
          &rope};
}

kernels::RopeTable rope_of(const mri_rope& r) {
  return {r.fine_cos, r.fine_sin, r.coarse_cos, r.coarse_sin,
          r.n_fine,   r.n_coarse, r.head_dim,   r.rotary_dim};
}

KvPage page_of(const mri_attn_req& req, const mri_attn_item& item, uint32_t block, int32_t distance,
               float log_weight) {
  const mri_kv_block& b = req.seqs[item.seq].blocks[block];
  const size_t h = item.kv_head;
  return {b.index + req.layer * b.index_layer_stride + h * b.index_head_stride,
          b.body + req.layer * b.body_layer_stride + h * b.body_head_stride,
          nullptr,
          b.live_mask,
          static_cast<KvFormat>(b.format),
          distance,
          log_weight};
}

void add_summary(const mri_attn_req& req, const mri_attn_item& item, const mri_kv_summary& s,
                 int32_t distance, float log_weight, std::vector<KvPage>& pages) {
  const size_t h = item.kv_head;
  for (uint32_t p = 0; p < s.n_pages; ++p) {
    const uint8_t* body =
        s.body + req.layer * s.layer_stride + h * s.head_stride + p * s.page_stride;
    const float* bias =
        s.bias + ((size_t{req.layer} * req.n_kv_heads + h) * s.n_pages + p) * MRI_BLOCK_TOKENS;
    pages.push_back({nullptr, body, bias, UINT32_MAX, KvFormat::kBf16, distance, log_weight});
  }
}

mri_status attend(void*, const mri_attn_req* req, const mri_attn_item* item,
                  const mri_attn_entry* entries, uint64_t n_entries, float* o, uint64_t o_stride,
                  float* lse, uint64_t lse_stride) {
  const mri_attn_seq& seq = req->seqs[item->seq];
  std::vector<KvPage> pages;
  for (uint64_t e = 0; e < n_entries; ++e) {
    const mri_attn_entry& entry = entries[e];
    const bool blocks = entry.what == MRI_ATTN_BLOCKS;
    if (entry.index + entry.count > (blocks ? seq.n_blocks : seq.n_summaries)) return MRI_E_ARG;
    for (uint32_t i = 0; i < entry.count; ++i) {
      const auto nearer =
          static_cast<int32_t>(blocks ? i : i * (MRI_SEGMENT_TOKENS / MRI_BLOCK_TOKENS));
      const int32_t distance = entry.distance - nearer;
      if (blocks) {
        pages.push_back(page_of(*req, *item, entry.index + i, distance, entry.log_weight));
      } else {
        add_summary(*req, *item, seq.summaries[entry.index + i], distance, entry.log_weight, pages);
      }
    }
  }
  const kernels::RopeTable rope = rope_of(*req->rope);
  ref::attend(tile_of(*req, *item, rope), pages.data(), pages.size(), o, o_stride, lse, lse_stride);
  return MRI_OK;
}

mri_status score_blocks(void*, const mri_attn_req* req, const mri_attn_item* item, uint32_t how,
                        const uint32_t* blocks, const int32_t* distances, uint64_t n,
                        uint32_t query_step, float* scores) {
  std::vector<KvPage> pages;
  for (uint64_t i = 0; i < n; ++i)
    pages.push_back(page_of(*req, *item, blocks[i], distances[i], 0));
  const kernels::RopeTable rope = rope_of(*req->rope);
  ref::score_pages(tile_of(*req, *item, rope), pages.data(), n, static_cast<kernels::Score>(how),
                   query_step, scores);
  return MRI_OK;
}

uint64_t index_bytes(void*, uint32_t head_dim) { return kernels::index_bytes(head_dim); }
uint64_t body_bytes(void*, uint32_t format, uint32_t head_dim) {
  return kernels::body_bytes(static_cast<KvFormat>(format), head_dim);
}
void make_index(void*, const float* k, uint32_t live_mask, uint32_t head_dim, uint8_t* index) {
  ref::make_index(k, live_mask, head_dim, index);
}
mri_status encode(void*, uint32_t format, const float* k, const float* v, uint32_t head_dim,
                  const uint8_t* index, uint8_t* body) {
  ref::encode(static_cast<KvFormat>(format), k, v, head_dim, index, body);
  return MRI_OK;
}
mri_status decode(void*, uint32_t format, const uint8_t* index, const uint8_t* body,
                  uint32_t head_dim, float* k, float* v) {
  ref::decode(static_cast<KvFormat>(format), index, body, head_dim, k, v);
  return MRI_OK;
}
uint64_t top_k(void*, const float* scores, uint64_t n, uint64_t k, uint32_t* out) {
  return ref::top_k(scores, n, k, out);
}
void merge(void*, uint64_t n, uint32_t head_dim, float* o, float* lse, const float* o2,
           const float* lse2) {
  for (uint64_t i = 0; i < n; ++i)
    ref::merge(o + i * head_dim, lse + i, o2 + i * head_dim, lse2[i], head_dim);
}
void matmul_nt(void*, uint64_t m, uint64_t n, uint64_t k, const float* a, const float* b,
               float* c) {
  for (uint64_t i = 0; i < m * n; ++i) {
    float sum = 0;
    for (uint64_t x = 0; x < k; ++x) sum += a[i / n * k + x] * b[i % n * k + x];
    c[i] = sum;
  }
}

}  // namespace

const mri_kernels_v1& ref_kernels() {
  static constexpr mri_kernels_v1 kTable = {
      sizeof(mri_kernels_v1), 0,     nullptr, index_bytes, body_bytes, make_index, encode, decode,
      score_blocks,           top_k, attend,  merge,       matmul_nt};
  return kTable;
}

}  // namespace varve
