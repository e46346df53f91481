/* timings.h: where the time of a context's steps goes, by kind of attention. */
#pragma once

#include <stdint.h>

#include "mri/status.h"

#define MRI_TIMINGS "mri.timings/1"

/* Sums since enable(). Nanoseconds are of the calling thread's clock: parts of work that several
 * threads share count once. Grows at the end. */
typedef struct mri_timings {
  mri_rsp_hdr hdr;
  uint64_t local_attn_ns;   /* sinks, window, and whatever is read densely */
  uint64_t sparse_attn_ns;  /* choosing blocks and reading them */
  uint64_t summary_attn_ns; /* reading summaries */
  uint64_t kv_cache_ns;     /* writing, moving between tiers, summarising */
  uint64_t other_ns;        /* products, norms, everything else of the forward pass */
  uint64_t n_tokens;
  /* Chosen blocks (attention plugins that choose): how many choices were made, blocks chosen in
   * all, fewest and most of one choice, and how many of the chosen were chosen the time before too.
   */
  uint64_t n_choices, blocks_chosen, blocks_chosen_again;
  uint64_t blocks_min, blocks_max;
} mri_timings;

typedef struct mri_timings_v1 {
  uint32_t struct_size, reserved;
  /* Off by default; costs nothing then. [step:ctx] */
  mri_status (*enable)(void* self, uint64_t ctx, uint32_t on, mri_error* err);
  /* [step:ctx] */
  mri_status (*read)(void* self, uint64_t ctx, mri_timings* out, mri_error* err);
} mri_timings_v1;
