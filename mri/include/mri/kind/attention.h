/* attention.h: which keys a query reads, and the reading.
 *
 * plan() decides: it looks at lengths and page indexes and leaves a plain list. run() computes what
 * the list says and decides nothing. Both take a batch of sequences. The result is (o, lse) per
 * query and head, so that results over disjoint sets of keys merge exactly (ext/kernels.h, merge).
 * lse is natural log of the sum of exp(scale * q.k + bias); an empty set is o = 0, lse = -inf. */
#pragma once

#include <stdint.h>

#include "mri/kv_view.h"
#include "mri/status.h"

#define MRI_ATTENTION "mri.attention/1"

#define MRI_ATTN_SEQ_PROMPT_END 1u /* the last of these queries is the last token of the prompt */
#define MRI_ATTN_SEQ_DECODE 2u     /* one new token of a running sequence */

/* One sequence of the batch. 64 bytes, frozen. All keys of the queries themselves are already in
 * `blocks`. */
typedef struct mri_attn_seq {
  const mri_kv_block* blocks; /* in text order; block i holds positions 32 i .. 32 i + 31 */
  const mri_kv_summary* summaries;
  uint32_t n_blocks, n_summaries;
  uint32_t first_row; /* row of the first query in q, o and lse */
  uint32_t n_queries;
  uint32_t position; /* of the first query in the text */
  uint32_t flags;
  /* Block numbers that the host proposes (term index, semantic index); may be NULL. */
  const uint32_t* hints;
  uint32_t n_hints;
  uint32_t reserved;
  /* The runtime's number of the context, for plugins that remember; 0: none. */
  uint64_t context;
} mri_attn_seq;

/* Where the time of plan and run goes and what they chose. The callee adds to it; nanoseconds are
 * of the calling thread's clock. blocks_min is meaningful once n_choices > 0. Grows at the end. */
typedef struct mri_attn_times {
  uint32_t struct_size, reserved; /* the caller's size: members beyond it are not there */
  uint64_t local_ns;              /* sinks, window, and whatever is read densely */
  uint64_t sparse_ns;             /* choosing blocks and reading them */
  uint64_t summary_ns;            /* reading summaries */
  /* A choice is made for one KV head of one token of an answer. */
  uint64_t n_choices, blocks_chosen;
  uint64_t blocks_chosen_again;    /* of these, chosen the time before too */
  uint64_t blocks_min, blocks_max; /* of one choice */
} mri_attn_times;

/* One layer of one step. Grows at the end. */
typedef struct mri_attn_req {
  mri_req_hdr hdr;
  const mri_attn_seq* seqs;
  const mri_rope* rope;
  const float* q; /* [rows][n_heads][head_dim], not rotated */
  float* o;       /* [rows][n_heads][head_dim]; written by run */
  float* lse;     /* [rows][n_heads]; written by run */
  uint32_t n_seqs;
  uint32_t layer;
  uint32_t n_heads, n_kv_heads, head_dim;
  float scale;             /* 1 / sqrt(head_dim) unless the model says otherwise */
  uint32_t trained_tokens; /* longest distance the model was trained on */
  uint32_t reserved;
  const void* runtime;   /* the runtime's own: passed on to its kernel table as it is */
  mri_attn_times* times; /* NULL: not asked for; measuring costs nothing then */
} mri_attn_req;

#define MRI_ATTN_BLOCKS 0u  /* entry reads blocks[index .. index + count) */
#define MRI_ATTN_SUMMARY 1u /* entry reads summaries[index .. index + count), all their pages */

/* A run of blocks or summaries. 20 bytes, frozen. `distance` is how many blocks the first lies
 * before the item's first query: the query's offset in its own block stays as it is, so true
 * positions give distance = query_block - block. Each further block is one nearer; each further
 * summary MRI_SEGMENT_TOKENS / 32 nearer. A key after its query is masked, which needs true
 * positions (distance <= 0 only for the item's own blocks). */
typedef struct mri_attn_entry {
  uint32_t what;
  uint32_t index, count;
  int32_t distance;
  float log_weight; /* added to each logit; 0 for exact reading */
} mri_attn_entry;

/* A unit of work: all query heads of one KV head, n_queries queries that start in one block. 32
 * bytes, frozen. */
typedef struct mri_attn_item {
  uint32_t seq, kv_head;
  uint32_t first_query, n_queries; /* relative to the sequence's first query */
  uint32_t first_entry, n_entries;
  uint32_t flags, reserved;
} mri_attn_item;

/* The list. The caller owns both arrays; on MRI_E_SPACE the counts say what is needed. Grows at the
 * end. */
typedef struct mri_attn_plan {
  mri_rsp_hdr hdr;
  mri_attn_item* items;
  mri_attn_entry* entries;
  uint64_t items_capacity, entries_capacity;
  uint64_t n_items, n_entries;
} mri_attn_plan;

typedef struct mri_attention_v1 {
  uint32_t struct_size, reserved;
  /* [step:ctx] for every context in the batch; re-entrant for disjoint batches. */
  mri_status (*plan)(void* self, const mri_attn_req* req, mri_attn_plan* plan, mri_error* err);
  /* Every block that the plan names has a body by now. [step:ctx] after plan with the same req */
  mri_status (*run)(void* self, const mri_attn_req* req, const mri_attn_plan* plan, mri_error* err);
} mri_attention_v1;
