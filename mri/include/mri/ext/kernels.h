/* kernels.h: the fast code that the runtime of a stack offers to its plugins. Same table on every
 * machine; the best instruction set is chosen at run time. All calls are re-entrant, start no
 * threads, and write only their outputs. */
#pragma once

#include <stdint.h>

#include "mri/kind/attention.h"
#include "mri/kv_view.h"
#include "mri/status.h"

#define MRI_KERNELS "mri.kernels/1"

#define MRI_SCORE_RADIUS 0u /* n_live * exp of the bound: centre +- mean radius */
#define MRI_SCORE_SKETCH 1u /* sum of exp over the 2-bit sketch of every key */

typedef struct mri_kernels_v1 {
  uint32_t struct_size, reserved;
  void* self;

  /* Bytes of a page's index, and of a body in a fused format (0 for another format). [any] */
  uint64_t (*index_bytes)(void* self, uint32_t head_dim);
  uint64_t (*body_bytes)(void* self, uint32_t format, uint32_t head_dim);

  /* Makes the index of a page from k [32][head_dim] f32; only tokens of live_mask count. [any] */
  void (*make_index)(void* self, const float* k, uint32_t live_mask, uint32_t head_dim,
                     uint8_t* index);
  /* Encodes k, v [32][head_dim] f32 into a fused format. MRI_KV_INT8 reads the index. [any] */
  mri_status (*encode)(void* self, uint32_t format, const float* k, const float* v,
                       uint32_t head_dim, const uint8_t* index, uint8_t* body);
  /* The reverse; k or v may be NULL. [any] */
  mri_status (*decode)(void* self, uint32_t format, const uint8_t* index, const uint8_t* body,
                       uint32_t head_dim, float* k, float* v);

  /* Estimates how much attention each listed block gets from the queries of `item`: scores[i] = sum
   * over the used rows of softmax over the listed blocks, with mass of a block as `how` says.
   * `distances` as in mri_attn_entry. Every query_step-th query is used, all heads of the group.
   * [any] */
  mri_status (*score_blocks)(void* self, const mri_attn_req* req, const mri_attn_item* item,
                             uint32_t how, const uint32_t* blocks, const int32_t* distances,
                             uint64_t n, uint32_t query_step, float* scores);
  /* The numbers of the k largest of n scores, in rising order of number; returns how many were
   * written (min(k, n)). Ties go to the lower number; NaN counts as -inf. [any] */
  uint64_t (*top_k)(void* self, const float* scores, uint64_t n, uint64_t k, uint32_t* out);

  /* Reads the listed entries: o [n_queries][group][head_dim] at o + query * o_stride + head *
   * head_dim, lse at lse + query * lse_stride + head, group = n_heads / n_kv_heads. Strides in
   * floats. [any] */
  mri_status (*attend)(void* self, const mri_attn_req* req, const mri_attn_item* item,
                       const mri_attn_entry* entries, uint64_t n_entries, float* o,
                       uint64_t o_stride, float* lse, uint64_t lse_stride);
  /* (o, lse) := (o, lse) (+) (o2, lse2) for n rows of head_dim, all contiguous. [any] */
  void (*merge)(void* self, uint64_t n, uint32_t head_dim, float* o, float* lse, const float* o2,
                const float* lse2);

  /* c [m][n] = a [m][k] * b [n][k]^T, all f32, contiguous. [any] */
  void (*matmul_nt)(void* self, uint64_t m, uint64_t n, uint64_t k, const float* a, const float* b,
                    float* c);
} mri_kernels_v1;
