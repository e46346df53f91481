/* quantizer.h: one page of keys and values to bytes and back. The page index (kv_view.h) is made by
 * the runtime and given. */
#pragma once

#include <stdint.h>

#include "mri/kv_view.h"
#include "mri/status.h"

#define MRI_QUANTIZER "mri.quantizer/1"

typedef struct mri_quant_desc { /* grows at the end */
  mri_rsp_hdr hdr;
  uint32_t format; /* MRI_KV_*; MRI_KV_CUSTOM and above when only this plugin can decode it */
  uint32_t reserved;
  uint64_t body_bytes;   /* of each page; a multiple of 64 is not required */
  double bits_per_value; /* body only, scales included */
} mri_quant_desc;

typedef struct mri_quant_encode_req { /* grows at the end */
  mri_req_hdr hdr;
  const float* k; /* [32][head_dim] */
  const float* v; /* [32][head_dim] */
  const uint8_t* index;
  uint8_t* body;                 /* body_bytes, 64-byte aligned */
  const uint8_t* previous_index; /* the same page of the block before, if it is encoded by this
                                    plugin; else NULL */
  const uint8_t* previous_body;
  uint32_t head_dim;
  uint32_t live_mask;
  uint32_t layer, kv_head;
} mri_quant_encode_req;

typedef struct mri_quant_decode_req { /* grows at the end */
  mri_req_hdr hdr;
  const uint8_t* index;
  const uint8_t* body;
  const uint8_t* previous_index; /* as in encode */
  const uint8_t* previous_body;
  float* k; /* [32][head_dim], written */
  float* v; /* [32][head_dim], written */
  uint32_t head_dim;
  uint32_t live_mask;
  uint32_t layer, kv_head;
} mri_quant_decode_req;

typedef struct mri_quantizer_v1 {
  uint32_t struct_size, reserved;
  /* Same answer for the same head size until drain. [any] */
  mri_status (*describe)(void* self, uint32_t head_dim, mri_quant_desc* out, mri_error* err);
  /* Reads all inputs, writes all of body, keeps neither. [any] */
  mri_status (*encode)(void* self, const mri_quant_encode_req* req, mri_error* err);
  mri_status (*decode)(void* self, const mri_quant_decode_req* req, mri_error* err);
} mri_quantizer_v1;
