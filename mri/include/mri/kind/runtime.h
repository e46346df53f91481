/* runtime.h: an engine. Contexts are numbers > 0 that init_context hands out. */
#pragma once

#include <stdint.h>

#include "mri/status.h"
#include "mri/version.h"

#define MRI_RUNTIME "mri.runtime/1"

/* Positions [first, first + count). 16 bytes, frozen. */
typedef struct mri_token_range {
  uint64_t first, count;
} mri_token_range;

/* Bytes of a context (or of all) by tier. 64 bytes, frozen. */
typedef struct mri_kv_usage {
  uint64_t hot_bytes, warm_bytes, cold_bytes; /* resident, index and summaries included */
  uint64_t backing_bytes;                     /* encoded raw cold blocks kept in RAM or in a file */
  uint64_t bf16_bytes; /* what the same tokens take as plain bf16 keys and values */
  uint64_t hot_tokens, warm_tokens, cold_tokens;
} mri_kv_usage;

typedef struct mri_init_req { /* grows at the end */
  mri_req_hdr hdr;
  uint64_t context_key; /* the caller's name for it, for logs */
  uint64_t seed;
  const int32_t* tokens; /* the prompt; may be empty */
  uint64_t n_tokens;
  uint64_t max_tokens;   /* longest the context may become; 0: the runtime's limit */
  uint64_t budget_bytes; /* of KV memory; 0: the runtime's share */
  uint32_t chunk_tokens; /* prefill step; 0: the runtime's default */
  uint32_t n_pinned;
  const mri_token_range* pinned; /* ranges that never leave hot */
  float* logits;                 /* [vocab] after the last prompt token, or NULL */
  /* Polled with an atomic load between layers; non-zero cancels; may be NULL. */
  const uint32_t* cancel;
  /* Called after each chunk in the calling thread; may be NULL. */
  void (*progress)(void* user, uint64_t done_tokens, uint64_t n_tokens);
  void* progress_user;
} mri_init_req;

typedef struct mri_init_rsp { /* grows at the end */
  mri_rsp_hdr hdr;
  uint64_t ctx;
  uint64_t n_chunks, n_chunks_retried;
  mri_kv_usage usage;
} mri_init_rsp;

#define MRI_STEP_PROMPT 1u /* these tokens are part of a prompt (else: of an answer) */
#define MRI_STEP_MORE 2u   /* more of the same prompt follows in later steps */
#define MRI_STEP_NO_SUMMARIES                                        \
  4u /* this step reads no summaries: faster, and blind to cold text \
      */

/* One sequence of a step. 64 bytes, frozen. */
typedef struct mri_step_seq {
  uint64_t ctx;
  const int32_t* tokens; /* appended to the context */
  uint64_t n_tokens;     /* >= 1 */
  float* logits; /* NULL, or [vocab] for the last token, or [n_tokens][vocab] when all_logits */
  uint32_t all_logits;
  int32_t status;    /* callee: MRI_OK or why this sequence failed; the others are not affected */
  uint64_t position; /* callee: position of the first of these tokens */
  uint32_t flags;    /* MRI_STEP_* */
  uint32_t reserved;
  uint64_t reserved1;
} mri_step_seq;

typedef struct mri_step_req { /* grows at the end */
  mri_req_hdr hdr;
  uint64_t step_id;
  mri_step_seq* seqs; /* each ctx at most once */
  uint64_t n_seqs;
  const uint32_t* cancel;
} mri_step_req;

typedef struct mri_step_rsp { /* grows at the end */
  mri_rsp_hdr hdr;
  uint64_t n_tokens;  /* computed */
  mri_kv_usage usage; /* of all contexts in the step */
} mri_step_rsp;

#define MRI_SUMMARY_BLOCKS 0u /* rows of mri_kv_block_info */

/* 32 bytes, frozen. */
typedef struct mri_kv_block_info {
  uint64_t id;
  uint64_t position;
  uint32_t n_tokens; /* live */
  uint32_t tier;
  uint64_t bytes;
} mri_kv_block_info;

typedef struct mri_summary_req { /* grows at the end */
  mri_req_hdr hdr;
  uint64_t first_token, n_tokens; /* n_tokens 0: to the end */
  uint32_t what;                  /* MRI_SUMMARY_BLOCKS */
  uint32_t reserved;
  mri_kv_block_info* out; /* caller's */
  uint64_t capacity;
} mri_summary_req;

typedef struct mri_summary_rsp { /* grows at the end */
  mri_rsp_hdr hdr;
  uint64_t n_out;    /* with MRI_E_SPACE: needed */
  uint64_t kv_epoch; /* rises with every eviction */
  mri_kv_usage usage;
} mri_summary_rsp;

#define MRI_EVICT_BLOCK_AWARE \
  0u /* whole 1K segments clipped to whole blocks: never tears a quantisation block */
#define MRI_EVICT_TOKEN 1u
#define MRI_EVICT_BLOCK 2u
#define MRI_EVICT_SEGMENT 3u /* every segment that the range touches, whole */

#define MRI_CONFIRM_UNKNOWN 0u
#define MRI_CONFIRM_PENDING 1u
#define MRI_CONFIRM_DONE 2u
#define MRI_CONFIRM_REFUSED 3u

typedef struct mri_evict_req { /* grows at the end */
  mri_req_hdr hdr;
  uint64_t request_id;
  const mri_token_range* ranges;
  uint64_t n_ranges;
  uint32_t granularity; /* MRI_EVICT_* */
  uint32_t reason;      /* 0 caller, 1 pressure, 2 expiry */
} mri_evict_req;

typedef struct mri_evict_rsp { /* grows at the end */
  mri_rsp_hdr hdr;
  uint64_t n_evicted;   /* tokens that are gone */
  uint64_t bytes_freed; /* end of 1.0: 32 bytes */
#if MRI_TARGET_VERSION >= MRI_1_1
  uint32_t confirm_state; /* MRI_CONFIRM_*; absent in 1.0, which the host reads as unknown, never as
                             success */
  uint32_t n_refused;     /* blocks that stayed: sinks, pinned, shared */
  uint64_t confirm_epoch; /* KV epoch from which the tokens are gone; end of 1.1: 48 bytes */
#endif
} mri_evict_rsp;

#define MRI_EVICT_RSP_SIZE_1_0 32u
#define MRI_EVICT_RSP_SIZE_1_1 48u

typedef struct mri_runtime_v1 {
  uint32_t struct_size, reserved;
  /* Makes a context and prefills it in chunks; a failed chunk is retried alone. On error no context
   * exists. [any] */
  mri_status (*init_context)(void* self, const mri_init_req* req, mri_init_rsp* rsp,
                             mri_error* err);
  /* Appends tokens to one or more contexts. Errors of one sequence are in its status; the call
   * fails only as a whole. With MRI_OK, err->msg may say why the last of the sequences that failed
   * did. [step:ctx] for every ctx named */
  mri_status (*forward_step)(void* self, const mri_step_req* req, mri_step_rsp* rsp,
                             mri_error* err);
  /* Legal only between init_context or evict_kv and the next forward_step; otherwise MRI_E_STATE,
   * never a recompute. [step:ctx] */
  mri_status (*get_kv_summary)(void* self, uint64_t ctx, const mri_summary_req* req,
                               mri_summary_rsp* rsp, mri_error* err);
  /* Locks the whole cache of the context; other contexts go on. [any] */
  mri_status (*evict_kv)(void* self, uint64_t ctx, const mri_evict_req* req, mri_evict_rsp* rsp,
                         mri_error* err);
  /* Waits for calls on ctx that are under way. Unknown numbers are ignored. [any] */
  void (*release_context)(void* self, uint64_t ctx);
} mri_runtime_v1;
