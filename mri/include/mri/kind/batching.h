/* batching.h: which requests the next step serves, and in which sub-batches. */
#pragma once

#include <stdint.h>

#include "mri/status.h"

#define MRI_BATCHING "mri.batching/1"

/* One request as the policy sees it. 64 bytes, frozen. */
typedef struct mri_batch_request {
  uint64_t id;
  uint64_t age_us;             /* since arrival */
  uint64_t kv_bytes;           /* now */
  uint64_t prompt_tokens_left; /* 0: decoding */
  uint64_t deadline_us;        /* from now; UINT64_MAX: none */
  uint32_t priority;           /* larger is served first */
  uint32_t context_tokens;
  uint32_t running; /* 0 waiting, 1 running */
  uint32_t reserved;
  uint64_t reserved1;
} mri_batch_request;

typedef struct mri_batch_req { /* grows at the end */
  mri_req_hdr hdr;
  const mri_batch_request* requests; /* waiting ones in order of arrival, then running ones */
  uint64_t n_requests;
  uint64_t step_tokens_max; /* prompt and decode tokens of one step */
  uint64_t kv_bytes_free;
  uint32_t sequences_max; /* running at once */
  uint32_t reserved;
} mri_batch_req;

/* One request's share of the step. 16 bytes, frozen. */
typedef struct mri_batch_pick {
  uint32_t request;   /* number in req->requests */
  uint32_t n_tokens;  /* prompt tokens to prefill, or 1 to decode */
  uint32_t sub_batch; /* picks of one sub-batch run together; sub-batches run in rising order */
  uint32_t reserved;
} mri_batch_pick;

typedef struct mri_batch_rsp { /* grows at the end */
  mri_rsp_hdr hdr;
  mri_batch_pick* picks; /* caller's; n_requests always suffice */
  uint64_t capacity;
  uint64_t n_picks;
} mri_batch_rsp;

typedef struct mri_batching_v1 {
  uint32_t struct_size, reserved;
  /* Pure. The lane clips an answer that breaks a limit and counts it. [any] */
  mri_status (*next_step)(void* self, const mri_batch_req* req, mri_batch_rsp* rsp, mri_error* err);
} mri_batching_v1;
