/* Copies a page: 32 bits a value. */
#include "plugin.h"

#define SIDE_BYTES(head_dim) (MRI_BLOCK_TOKENS * (uint64_t)(head_dim) * sizeof(float))

static mri_status describe(void* self, uint32_t head_dim, mri_quant_desc* out, mri_error* err) {
  (void)self, (void)err;
  if (IS_SHORT(out)) return MRI_E_ARG;
  if (head_dim == 0 || head_dim > 1024) return MRI_E_UNSUPPORTED;
  out->format = MRI_KV_CUSTOM;
  out->body_bytes = 2 * SIDE_BYTES(head_dim);
  out->bits_per_value = 32;
  FILLED(out, sizeof(*out));
  return MRI_OK;
}

static mri_status encode(void* self, const mri_quant_encode_req* req, mri_error* err) {
  (void)self, (void)err;
  if (IS_SHORT(req)) return MRI_E_ARG;
  memcpy(req->body, req->k, SIDE_BYTES(req->head_dim));
  memcpy(req->body + SIDE_BYTES(req->head_dim), req->v, SIDE_BYTES(req->head_dim));
  return MRI_OK;
}

static mri_status decode(void* self, const mri_quant_decode_req* req, mri_error* err) {
  (void)self, (void)err;
  if (IS_SHORT(req)) return MRI_E_ARG;
  memcpy(req->k, req->body, SIDE_BYTES(req->head_dim));
  memcpy(req->v, req->body + SIDE_BYTES(req->head_dim), SIDE_BYTES(req->head_dim));
  return MRI_OK;
}

static const void* lookup(void* self, const char* id) {
  static const mri_quantizer_v1 table = {sizeof(mri_quantizer_v1), 0, describe, encode, decode};
  (void)self;
  return strcmp(id, MRI_QUANTIZER) == 0 ? &table : NULL;
}

KEPT_PLUGIN("quantizer", "org.example.kept.quantizer");
