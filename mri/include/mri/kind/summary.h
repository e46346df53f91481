/* summary.h: many keys and values to a few pairs that stand for them in attention. */
#pragma once

#include <stdint.h>

#include "mri/status.h"

#define MRI_SUMMARY "mri.summary/1"

typedef struct mri_summary_make_req { /* grows at the end */
  mri_req_hdr hdr;
  const float* k;    /* [n_tokens][head_dim], rotated by the offset from the first token */
  const float* v;    /* [n_tokens][head_dim] */
  const float* mass; /* [n_tokens] attention received, or NULL */
  uint64_t seed;     /* of this page's segment: the only randomness allowed */
  uint32_t n_tokens, head_dim;
  uint32_t layer, kv_head;
} mri_summary_make_req;

typedef struct mri_summary_make_rsp { /* grows at the end */
  mri_rsp_hdr hdr;
  float* k;         /* caller's, [pairs_max][head_dim] */
  float* v;         /* caller's, [pairs_max][head_dim] */
  float* log_count; /* caller's, [pairs_max]: ln of the tokens a pair stands for */
  uint32_t pairs_capacity;
  uint32_t n_pairs; /* <= pairs_max(n_tokens) */
} mri_summary_make_rsp;

typedef struct mri_summary_v1 {
  uint32_t struct_size, reserved;
  /* The most pairs that make() returns for so many tokens. [any] */
  uint32_t (*pairs_max)(void* self, uint32_t n_tokens);
  /* [any] */
  mri_status (*make)(void* self, const mri_summary_make_req* req, mri_summary_make_rsp* rsp,
                     mri_error* err);
} mri_summary_v1;
