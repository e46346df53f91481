/* kv_tier.h: who is hot, warm or cold, and what goes when memory is short. The plugin decides; the
 * runtime moves. */
#pragma once

#include <stdint.h>

#include "mri/kv_view.h"
#include "mri/status.h"

#define MRI_KV_TIER "mri.kv_tier/1"

#define MRI_TIER_WHY_APPEND 0u   /* new tokens arrived */
#define MRI_TIER_WHY_PRESSURE 1u /* used + wanted > budget: free at least wanted_bytes */
#define MRI_TIER_WHY_QUERY 2u    /* a question arrived: relevance is fresh */

#define MRI_TIER_DEMOTE 1u     /* block -> `tier`, which is lower than now */
#define MRI_TIER_PROMOTE 2u    /* block -> `tier`, which is higher than now */
#define MRI_TIER_EVICT 3u      /* forget the block */
#define MRI_TIER_PREWARM 4u    /* fetch the cold block's body soon, in the background */
#define MRI_TIER_RESIZE_HOT 5u /* hot window := n_tokens */

/* One block as the policy sees it. 64 bytes, frozen. */
typedef struct mri_tier_block {
  uint64_t id;
  uint32_t position;
  uint32_t n_tokens;
  uint32_t tier;
  uint32_t flags;      /* MRI_BLOCK_*: sinks, pinned and partial blocks cannot be moved */
  float mass;          /* attention received lately, 0..1 of all; 0 when not measured */
  float relevance;     /* to the latest question, -1..1; 0 when not measured */
  uint64_t idle_steps; /* steps since a plan last read it */
  uint32_t reads;      /* steps of one token that read it while cold */
  uint32_t reserved;
  uint64_t bytes; /* now, index and summary share included */
  uint64_t reserved1;
} mri_tier_block;

typedef struct mri_tier_req { /* grows at the end */
  mri_req_hdr hdr;
  const mri_tier_block* blocks; /* in text order */
  uint64_t n_blocks;
  uint64_t n_tokens;     /* of the context */
  uint64_t step;         /* counts forward steps */
  uint64_t budget_bytes; /* UINT64_MAX: none */
  uint64_t used_bytes, wanted_bytes;
  uint64_t block_bytes[3]; /* what one full block takes in hot, warm, cold */
  uint32_t why;
  uint32_t hot_tokens; /* the window as last resized, or 0 before the first */
  float entropy;       /* of attention over the last 10 tokens, 0..1; -1 when not measured */
  uint32_t reserved;
} mri_tier_req;

typedef struct mri_tier_action { /* 16 bytes, frozen */
  uint64_t block_id;             /* not for RESIZE_HOT */
  uint16_t what;
  uint16_t tier;
  uint32_t n_tokens; /* RESIZE_HOT only */
} mri_tier_action;

typedef struct mri_tier_rsp { /* grows at the end */
  mri_rsp_hdr hdr;
  mri_tier_action* actions; /* caller's */
  uint64_t capacity;
  uint64_t n_actions; /* with MRI_E_SPACE: needed */
} mri_tier_rsp;

typedef struct mri_kv_tier_v1 {
  uint32_t struct_size, reserved;
  /* Pure: the same request gives the same answer. Actions are applied in order; impossible ones are
   * counted and skipped. [any] */
  mri_status (*decide)(void* self, const mri_tier_req* req, mri_tier_rsp* rsp, mri_error* err);
} mri_kv_tier_v1;
