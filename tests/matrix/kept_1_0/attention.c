/* Each query reads the mean value of all blocks, whatever the keys say. Takes MRI_KV_F32 bodies. */
#include "plugin.h"

static mri_status plan(void* self, const mri_attn_req* req, mri_attn_plan* out, mri_error* err) {
  uint32_t s, h;
  (void)self, (void)err;
  if (IS_SHORT(req) || IS_SHORT(out)) return MRI_E_ARG;
  out->n_items = out->n_entries = (uint64_t)req->n_seqs * req->n_kv_heads;
  FILLED(out, sizeof(*req));
  if (out->n_items > out->items_capacity || out->n_entries > out->entries_capacity) {
    return MRI_E_SPACE;
  }
  for (s = 0; s < req->n_seqs; ++s) {
    for (h = 0; h < req->n_kv_heads; ++h) {
      const uint32_t at = s * req->n_kv_heads + h;
      const mri_attn_item item = {s, h, 0, req->seqs[s].n_queries, at, 1, 0, 0};
      const mri_attn_entry entry = {MRI_ATTN_BLOCKS, 0, req->seqs[s].n_blocks,
                                    (int32_t)(req->seqs[s].position / MRI_BLOCK_TOKENS), 0};
      out->items[at] = item;
      out->entries[at] = entry;
    }
  }
  return MRI_OK;
}

static float mean_value(const mri_attn_req* req, const mri_attn_seq* seq, uint32_t head,
                        uint32_t channel) {
  uint32_t b, t, n = 0;
  float sum = 0;
  for (b = 0; b < seq->n_blocks; ++b) {
    const mri_kv_block* block = &seq->blocks[b];
    const float* page =
        (const float*)(const void*)(block->body + req->layer * block->body_layer_stride +
                                    head * block->body_head_stride);
    const float* values = page + req->head_dim * MRI_BLOCK_TOKENS;
    for (t = 0; t < block->n_tokens; ++t, ++n) sum += values[t * req->head_dim + channel];
  }
  return n == 0 ? 0 : sum / (float)n;
}

static mri_status run(void* self, const mri_attn_req* req, const mri_attn_plan* list,
                      mri_error* err) {
  const uint32_t group = req->n_heads / req->n_kv_heads;
  uint64_t i;
  uint32_t q, h, c;
  (void)self, (void)err;
  if (IS_SHORT(req) || IS_SHORT(list)) return MRI_E_ARG;
  for (i = 0; i < list->n_items; ++i) {
    const mri_attn_item* item = &list->items[i];
    const mri_attn_seq* seq = &req->seqs[item->seq];
    for (q = 0; q < item->n_queries; ++q) {
      for (h = item->kv_head * group; h < (item->kv_head + 1) * group; ++h) {
        const uint64_t row = (uint64_t)(seq->first_row + item->first_query + q) * req->n_heads + h;
        for (c = 0; c < req->head_dim; ++c) {
          req->o[row * req->head_dim + c] = mean_value(req, seq, item->kv_head, c);
        }
        req->lse[row] = 0;
      }
    }
  }
  return MRI_OK;
}

static const void* lookup(void* self, const char* id) {
  static const mri_attention_v1 table = {sizeof(mri_attention_v1), 0, plan, run};
  (void)self;
  return strcmp(id, MRI_ATTENTION) == 0 ? &table : NULL;
}

KEPT_PLUGIN("attention", "org.example.kept.attention");
