/* MRI 1.0, second half; see mri.h. */
#pragma once
#include "base.h"

#define MRI_ATTENTION "mri.attention/1"
#define MRI_ATTN_SEQ_PROMPT_END 1u
#define MRI_ATTN_SEQ_DECODE 2u
typedef struct mri_attn_seq {
  const mri_kv_block* blocks;
  const mri_kv_summary* summaries;
  uint32_t n_blocks, n_summaries;
  uint32_t first_row;
  uint32_t n_queries;
  uint32_t position;
  uint32_t flags;
  const uint32_t* hints;
  uint32_t n_hints;
  uint32_t reserved;
  uint64_t context;
} mri_attn_seq;
typedef struct mri_attn_times {
  uint32_t struct_size, reserved;
  uint64_t local_ns;
  uint64_t sparse_ns;
  uint64_t summary_ns;
  uint64_t n_choices, blocks_chosen;
  uint64_t blocks_chosen_again;
  uint64_t blocks_min, blocks_max;
} mri_attn_times;
typedef struct mri_attn_req {
  mri_req_hdr hdr;
  const mri_attn_seq* seqs;
  const mri_rope* rope;
  const float* q;
  float* o;
  float* lse;
  uint32_t n_seqs;
  uint32_t layer;
  uint32_t n_heads, n_kv_heads, head_dim;
  float scale;
  uint32_t trained_tokens;
  uint32_t reserved;
  const void* runtime;
  mri_attn_times* times;
} mri_attn_req;
#define MRI_ATTN_BLOCKS 0u
#define MRI_ATTN_SUMMARY 1u
typedef struct mri_attn_entry {
  uint32_t what;
  uint32_t index, count;
  int32_t distance;
  float log_weight;
} mri_attn_entry;
typedef struct mri_attn_item {
  uint32_t seq, kv_head;
  uint32_t first_query, n_queries;
  uint32_t first_entry, n_entries;
  uint32_t flags, reserved;
} mri_attn_item;
typedef struct mri_attn_plan {
  mri_rsp_hdr hdr;
  mri_attn_item* items;
  mri_attn_entry* entries;
  uint64_t items_capacity, entries_capacity;
  uint64_t n_items, n_entries;
} mri_attn_plan;
typedef struct mri_attention_v1 {
  uint32_t struct_size, reserved;
  mri_status (*plan)(void* self, const mri_attn_req* req, mri_attn_plan* plan, mri_error* err);
  mri_status (*run)(void* self, const mri_attn_req* req, const mri_attn_plan* plan, mri_error* err);
} mri_attention_v1;
#define MRI_KERNELS "mri.kernels/1"
#define MRI_SCORE_RADIUS 0u
#define MRI_SCORE_SKETCH 1u
typedef struct mri_kernels_v1 {
  uint32_t struct_size, reserved;
  void* self;
  uint64_t (*index_bytes)(void* self, uint32_t head_dim);
  uint64_t (*body_bytes)(void* self, uint32_t format, uint32_t head_dim);
  void (*make_index)(void* self, const float* k, uint32_t live_mask, uint32_t head_dim,
                     uint8_t* index);
  mri_status (*encode)(void* self, uint32_t format, const float* k, const float* v,
                       uint32_t head_dim, const uint8_t* index, uint8_t* body);
  mri_status (*decode)(void* self, uint32_t format, const uint8_t* index, const uint8_t* body,
                       uint32_t head_dim, float* k, float* v);
  mri_status (*score_blocks)(void* self, const mri_attn_req* req, const mri_attn_item* item,
                             uint32_t how, const uint32_t* blocks, const int32_t* distances,
                             uint64_t n, uint32_t query_step, float* scores);
  uint64_t (*top_k)(void* self, const float* scores, uint64_t n, uint64_t k, uint32_t* out);
  mri_status (*attend)(void* self, const mri_attn_req* req, const mri_attn_item* item,
                       const mri_attn_entry* entries, uint64_t n_entries, float* o,
                       uint64_t o_stride, float* lse, uint64_t lse_stride);
  void (*merge)(void* self, uint64_t n, uint32_t head_dim, float* o, float* lse, const float* o2,
                const float* lse2);
  void (*matmul_nt)(void* self, uint64_t m, uint64_t n, uint64_t k, const float* a, const float* b,
                    float* c);
} mri_kernels_v1;
#define MRI_QUANTIZER "mri.quantizer/1"
typedef struct mri_quant_desc {
  mri_rsp_hdr hdr;
  uint32_t format;
  uint32_t reserved;
  uint64_t body_bytes;
  double bits_per_value;
} mri_quant_desc;
typedef struct mri_quant_encode_req {
  mri_req_hdr hdr;
  const float* k;
  const float* v;
  const uint8_t* index;
  uint8_t* body;
  const uint8_t* previous_index;
  const uint8_t* previous_body;
  uint32_t head_dim;
  uint32_t live_mask;
  uint32_t layer, kv_head;
} mri_quant_encode_req;
typedef struct mri_quant_decode_req {
  mri_req_hdr hdr;
  const uint8_t* index;
  const uint8_t* body;
  const uint8_t* previous_index;
  const uint8_t* previous_body;
  float* k;
  float* v;
  uint32_t head_dim;
  uint32_t live_mask;
  uint32_t layer, kv_head;
} mri_quant_decode_req;
typedef struct mri_quantizer_v1 {
  uint32_t struct_size, reserved;
  mri_status (*describe)(void* self, uint32_t head_dim, mri_quant_desc* out, mri_error* err);
  mri_status (*encode)(void* self, const mri_quant_encode_req* req, mri_error* err);
  mri_status (*decode)(void* self, const mri_quant_decode_req* req, mri_error* err);
} mri_quantizer_v1;
#define MRI_KV_TIER "mri.kv_tier/1"
#define MRI_TIER_WHY_APPEND 0u
#define MRI_TIER_WHY_PRESSURE 1u
#define MRI_TIER_WHY_QUERY 2u
#define MRI_TIER_DEMOTE 1u
#define MRI_TIER_PROMOTE 2u
#define MRI_TIER_EVICT 3u
#define MRI_TIER_PREWARM 4u
#define MRI_TIER_RESIZE_HOT 5u
typedef struct mri_tier_block {
  uint64_t id;
  uint32_t position;
  uint32_t n_tokens;
  uint32_t tier;
  uint32_t flags;
  float mass;
  float relevance;
  uint64_t idle_steps;
  uint32_t reads;
  uint32_t reserved;
  uint64_t bytes;
  uint64_t reserved1;
} mri_tier_block;
typedef struct mri_tier_req {
  mri_req_hdr hdr;
  const mri_tier_block* blocks;
  uint64_t n_blocks;
  uint64_t n_tokens;
  uint64_t step;
  uint64_t budget_bytes, used_bytes, wanted_bytes;
  uint64_t block_bytes[3];
  uint32_t why;
  uint32_t hot_tokens;
  float entropy;
  uint32_t reserved;
} mri_tier_req;
typedef struct mri_tier_action {
  uint64_t block_id;
  uint16_t what;
  uint16_t tier;
  uint32_t n_tokens;
} mri_tier_action;
typedef struct mri_tier_rsp {
  mri_rsp_hdr hdr;
  mri_tier_action* actions;
  uint64_t capacity;
  uint64_t n_actions;
} mri_tier_rsp;
typedef struct mri_kv_tier_v1 {
  uint32_t struct_size, reserved;
  mri_status (*decide)(void* self, const mri_tier_req* req, mri_tier_rsp* rsp, mri_error* err);
} mri_kv_tier_v1;
#define MRI_SUMMARY "mri.summary/1"
typedef struct mri_summary_make_req {
  mri_req_hdr hdr;
  const float* k;
  const float* v;
  const float* mass;
  uint64_t seed;
  uint32_t n_tokens, head_dim;
  uint32_t layer, kv_head;
} mri_summary_make_req;
typedef struct mri_summary_make_rsp {
  mri_rsp_hdr hdr;
  float* k;
  float* v;
  float* log_count;
  uint32_t pairs_capacity;
  uint32_t n_pairs;
} mri_summary_make_rsp;
typedef struct mri_summary_v1 {
  uint32_t struct_size, reserved;
  uint32_t (*pairs_max)(void* self, uint32_t n_tokens);
  mri_status (*make)(void* self, const mri_summary_make_req* req, mri_summary_make_rsp* rsp,
                     mri_error* err);
} mri_summary_v1;
#define MRI_BATCHING "mri.batching/1"
typedef struct mri_batch_request {
  uint64_t id;
  uint64_t age_us;
  uint64_t kv_bytes;
  uint64_t prompt_tokens_left;
  uint64_t deadline_us;
  uint32_t priority;
  uint32_t context_tokens;
  uint32_t running;
  uint32_t reserved;
  uint64_t reserved1;
} mri_batch_request;
typedef struct mri_batch_req {
  mri_req_hdr hdr;
  const mri_batch_request* requests;
  uint64_t n_requests;
  uint64_t step_tokens_max;
  uint64_t kv_bytes_free;
  uint32_t sequences_max;
  uint32_t reserved;
} mri_batch_req;
typedef struct mri_batch_pick {
  uint32_t request;
  uint32_t n_tokens;
  uint32_t sub_batch;
  uint32_t reserved;
} mri_batch_pick;
typedef struct mri_batch_rsp {
  mri_rsp_hdr hdr;
  mri_batch_pick* picks;
  uint64_t capacity;
  uint64_t n_picks;
} mri_batch_rsp;
typedef struct mri_batching_v1 {
  uint32_t struct_size, reserved;
  mri_status (*next_step)(void* self, const mri_batch_req* req, mri_batch_rsp* rsp, mri_error* err);
} mri_batching_v1;
#define MRI_RUNTIME "mri.runtime/1"
typedef struct mri_token_range {
  uint64_t first, count;
} mri_token_range;
typedef struct mri_kv_usage {
  uint64_t hot_bytes, warm_bytes, cold_bytes;
  uint64_t backing_bytes;
  uint64_t bf16_bytes;
  uint64_t hot_tokens, warm_tokens, cold_tokens;
} mri_kv_usage;
typedef struct mri_init_req {
  mri_req_hdr hdr;
  uint64_t context_key;
  uint64_t seed;
  const int32_t* tokens;
  uint64_t n_tokens;
  uint64_t max_tokens;
  uint64_t budget_bytes;
  uint32_t chunk_tokens;
  uint32_t n_pinned;
  const mri_token_range* pinned;
  float* logits;
  const uint32_t* cancel;
  void (*progress)(void* user, uint64_t done_tokens, uint64_t n_tokens);
  void* progress_user;
} mri_init_req;
typedef struct mri_init_rsp {
  mri_rsp_hdr hdr;
  uint64_t ctx;
  uint64_t n_chunks, n_chunks_retried;
  mri_kv_usage usage;
} mri_init_rsp;
#define MRI_STEP_PROMPT 1u
#define MRI_STEP_MORE 2u
#define MRI_STEP_NO_SUMMARIES 4u
typedef struct mri_step_seq {
  uint64_t ctx;
  const int32_t* tokens;
  uint64_t n_tokens;
  float* logits;
  uint32_t all_logits;
  int32_t status;
  uint64_t position;
  uint32_t flags;
  uint32_t reserved;
  uint64_t reserved1;
} mri_step_seq;
typedef struct mri_step_req {
  mri_req_hdr hdr;
  uint64_t step_id;
  mri_step_seq* seqs;
  uint64_t n_seqs;
  const uint32_t* cancel;
} mri_step_req;
typedef struct mri_step_rsp {
  mri_rsp_hdr hdr;
  uint64_t n_tokens;
  mri_kv_usage usage;
} mri_step_rsp;
#define MRI_SUMMARY_BLOCKS 0u
typedef struct mri_kv_block_info {
  uint64_t id;
  uint64_t position;
  uint32_t n_tokens;
  uint32_t tier;
  uint64_t bytes;
} mri_kv_block_info;
typedef struct mri_summary_req {
  mri_req_hdr hdr;
  uint64_t first_token, n_tokens;
  uint32_t what;
  uint32_t reserved;
  mri_kv_block_info* out;
  uint64_t capacity;
} mri_summary_req;
typedef struct mri_summary_rsp {
  mri_rsp_hdr hdr;
  uint64_t n_out;
  uint64_t kv_epoch;
  mri_kv_usage usage;
} mri_summary_rsp;
#define MRI_EVICT_BLOCK_AWARE 0u
#define MRI_EVICT_TOKEN 1u
#define MRI_EVICT_BLOCK 2u
#define MRI_EVICT_SEGMENT 3u
#define MRI_CONFIRM_UNKNOWN 0u
#define MRI_CONFIRM_PENDING 1u
#define MRI_CONFIRM_DONE 2u
#define MRI_CONFIRM_REFUSED 3u
typedef struct mri_evict_req {
  mri_req_hdr hdr;
  uint64_t request_id;
  const mri_token_range* ranges;
  uint64_t n_ranges;
  uint32_t granularity;
  uint32_t reason;
} mri_evict_req;
typedef struct mri_evict_rsp {
  mri_rsp_hdr hdr;
  uint64_t n_evicted;
  uint64_t bytes_freed;
} mri_evict_rsp;
#define MRI_EVICT_RSP_SIZE_1_0 32u
typedef struct mri_runtime_v1 {
  uint32_t struct_size, reserved;
  mri_status (*init_context)(void* self, const mri_init_req* req, mri_init_rsp* rsp,
                             mri_error* err);
  mri_status (*forward_step)(void* self, const mri_step_req* req, mri_step_rsp* rsp,
                             mri_error* err);
  mri_status (*get_kv_summary)(void* self, uint64_t ctx, const mri_summary_req* req,
                               mri_summary_rsp* rsp, mri_error* err);
  mri_status (*evict_kv)(void* self, uint64_t ctx, const mri_evict_req* req, mri_evict_rsp* rsp,
                         mri_error* err);
  void (*release_context)(void* self, uint64_t ctx);
} mri_runtime_v1;
