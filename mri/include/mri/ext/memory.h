/* memory.h: what a server asks of a runtime's KV memory beyond one context: sharing prefixes, and
 * making room.
 *
 * A prefix key is 32 bytes that the host derives from everything that may decide whether two
 * callers share memory (model, stack, tenant) and from all tokens up to the end of a block. Key i
 * stands for tokens [0, 32 (i + 1)). The runtime compares keys and nothing else: equal keys mean
 * equal tokens and the right to share. */
#pragma once

#include <stdint.h>

#include "mri/status.h"

#define MRI_MEMORY "mri.memory/1"

/* 32 bytes, frozen. */
typedef struct mri_prefix_key {
  uint8_t bytes[32];
} mri_prefix_key;

/* Grows at the end. */
typedef struct mri_reuse_req {
  mri_req_hdr hdr;
  const mri_prefix_key* keys; /* of the wanted text, in order */
  uint64_t n_keys;
  uint64_t max_tokens;   /* as in mri_init_req */
  uint64_t budget_bytes; /* as in mri_init_req */
} mri_reuse_req;

/* Grows at the end. */
typedef struct mri_reuse_rsp {
  mri_rsp_hdr hdr;
  uint64_t ctx;      /* a new context that holds the prefix already; 0: nothing to reuse */
  uint64_t n_tokens; /* that it holds: a multiple of MRI_BLOCK_TOKENS */
} mri_reuse_rsp;

#define MRI_KEEP_PINNED 1u /* stays until forget(), whatever the pressure */

/* Grows at the end. */
typedef struct mri_memory_usage {
  mri_rsp_hdr hdr;
  uint64_t budget_bytes; /* 0: none */
  uint64_t used_bytes;   /* by contexts and kept prefixes together, shared blocks once */
  uint64_t kept_bytes;   /* of these, what only kept prefixes hold */
  uint64_t kept_prefixes;
  uint64_t contexts;
} mri_memory_usage;

typedef struct mri_memory_v1 {
  uint32_t struct_size, reserved;
  /* The longest kept prefix of `keys` as a new context. Blocks are shared; a change of tier or an
   * eviction in one context never shows in another. The longest prefix is shortened where a summary
   * stands for more than the prefix. [any] */
  mri_status (*reuse)(void* self, const mri_reuse_req* req, mri_reuse_rsp* rsp, mri_error* err);
  /* Keeps the context's first n_keys blocks (or as many as are full and not evicted) for reuse(),
   * also after the context is released. Least recently used prefixes go first when memory is short,
   * and before anybody is refused. [step:ctx] */
  mri_status (*keep)(void* self, uint64_t ctx, const mri_prefix_key* keys, uint64_t n_keys,
                     uint32_t flags, mri_error* err);
  /* Forgets the prefix that keep() stored under this last key. Contexts made from it go on. [any]
   */
  mri_status (*forget)(void* self, const mri_prefix_key* last_key, mri_error* err);
  /* Drops kept prefixes, then (ctx not 0) asks the kv_tier policy to make room in that context: its
   * blocks go warm or cold, its tokens stay readable. [step:ctx] */
  mri_status (*shrink)(void* self, uint64_t ctx, uint64_t wanted_bytes, uint64_t* freed_bytes,
                       mri_error* err);
  mri_status (*usage)(void* self, mri_memory_usage* out, mri_error* err); /* [any] */
} mri_memory_v1;
