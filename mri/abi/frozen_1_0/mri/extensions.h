/* MRI 1.0, third part; see mri.h. */
#pragma once
#include "base.h"

#define MRI_SAMPLING "mri.sampling/1"
typedef struct mri_logit_bias {
  int32_t token;
  float bias;
} mri_logit_bias;
typedef struct mri_sampler_req {
  mri_req_hdr hdr;
  uint64_t seed;
  const mri_logit_bias* biases;
  const char* grammar;
  uint32_t n_biases;
  uint32_t top_k;
  uint32_t penalty_tokens;
  float temperature, top_p, min_p;
  float repetition_penalty, presence_penalty, frequency_penalty;
  uint32_t reserved;
} mri_sampler_req;
typedef struct mri_sampling_v1 {
  uint32_t struct_size, reserved;
  mri_status (*create)(void* self, const mri_sampler_req* req, uint64_t* sampler, mri_error* err);
  mri_status (*sample)(void* self, uint64_t sampler, const float* logits, int32_t* token,
                       mri_error* err);
  mri_status (*accept)(void* self, uint64_t sampler, const int32_t* tokens, uint64_t n_tokens,
                       mri_error* err);
  void (*release)(void* self, uint64_t sampler);
} mri_sampling_v1;
#define MRI_MEMORY "mri.memory/1"
typedef struct mri_prefix_key {
  uint8_t bytes[32];
} mri_prefix_key;
typedef struct mri_reuse_req {
  mri_req_hdr hdr;
  const mri_prefix_key* keys;
  uint64_t n_keys;
  uint64_t max_tokens;
  uint64_t budget_bytes;
} mri_reuse_req;
typedef struct mri_reuse_rsp {
  mri_rsp_hdr hdr;
  uint64_t ctx;
  uint64_t n_tokens;
} mri_reuse_rsp;
#define MRI_KEEP_PINNED 1u
typedef struct mri_memory_usage {
  mri_rsp_hdr hdr;
  uint64_t budget_bytes;
  uint64_t used_bytes;
  uint64_t kept_bytes;
  uint64_t kept_prefixes;
  uint64_t contexts;
} mri_memory_usage;
typedef struct mri_memory_v1 {
  uint32_t struct_size, reserved;
  mri_status (*reuse)(void* self, const mri_reuse_req* req, mri_reuse_rsp* rsp, mri_error* err);
  mri_status (*keep)(void* self, uint64_t ctx, const mri_prefix_key* keys, uint64_t n_keys,
                     uint32_t flags, mri_error* err);
  mri_status (*forget)(void* self, const mri_prefix_key* last_key, mri_error* err);
  mri_status (*shrink)(void* self, uint64_t ctx, uint64_t wanted_bytes, uint64_t* freed_bytes,
                       mri_error* err);
  mri_status (*usage)(void* self, mri_memory_usage* out, mri_error* err);
} mri_memory_v1;
#define MRI_TIMINGS "mri.timings/1"
typedef struct mri_timings {
  mri_rsp_hdr hdr;
  uint64_t local_attn_ns;
  uint64_t sparse_attn_ns;
  uint64_t summary_attn_ns;
  uint64_t kv_cache_ns;
  uint64_t other_ns;
  uint64_t n_tokens;
  uint64_t n_choices, blocks_chosen, blocks_chosen_again;
  uint64_t blocks_min, blocks_max;
} mri_timings;
typedef struct mri_timings_v1 {
  uint32_t struct_size, reserved;
  mri_status (*enable)(void* self, uint64_t ctx, uint32_t on, mri_error* err);
  mri_status (*read)(void* self, uint64_t ctx, mri_timings* out, mri_error* err);
} mri_timings_v1;
