/* A quantizer in C that keeps the 32-bit numbers as they are. */
#include <stddef.h>
#include <string.h>

#include "mri/entry.h"
#include "mri/kind/quantizer.h"

static uint64_t body_bytes(uint32_t head_dim) {
  return 2 * sizeof(float) * MRI_BLOCK_TOKENS * (uint64_t)head_dim;
}

/* Callers of other versions give other sizes: only what both know is touched. */
static uint32_t common_size(uint32_t theirs, size_t ours) {
  return theirs < ours ? theirs : (uint32_t)ours;
}

static mri_status describe(void* self, uint32_t head_dim, mri_quant_desc* out, mri_error* err) {
  (void)self, (void)err;
  if (out == NULL || out->hdr.struct_size < sizeof(*out)) return MRI_E_ARG;
  out->format = MRI_KV_CUSTOM + 2;
  out->body_bytes = body_bytes(head_dim);
  out->bits_per_value = 32;
  out->hdr.written = common_size(out->hdr.struct_size, sizeof(*out));
  return MRI_OK;
}

static mri_status encode(void* self, const mri_quant_encode_req* req, mri_error* err) {
  (void)self, (void)err;
  if (req == NULL || req->hdr.struct_size < sizeof(*req)) return MRI_E_ARG;
  const uint64_t half = body_bytes(req->head_dim) / 2;
  memcpy(req->body, req->k, half);
  memcpy(req->body + half, req->v, half);
  return MRI_OK;
}

static mri_status decode(void* self, const mri_quant_decode_req* req, mri_error* err) {
  (void)self, (void)err;
  if (req == NULL || req->hdr.struct_size < sizeof(*req)) return MRI_E_ARG;
  const uint64_t half = body_bytes(req->head_dim) / 2;
  memcpy(req->k, req->body, half);
  memcpy(req->v, req->body + half, half);
  return MRI_OK;
}

static const mri_quantizer_v1 table = {sizeof(mri_quantizer_v1), 0, describe, encode, decode};

static const void* get_interface(void* self, const char* id) {
  (void)self;
  return strcmp(id, MRI_QUANTIZER) == 0 ? &table : NULL;
}

static mri_status query_caps(void* self, mri_caps* out, mri_error* err) {
  (void)self, (void)err;
  out->thread_model = 3;
  out->determinism = 3;
  out->sync_model = 2;
  out->hdr.written = common_size(out->hdr.struct_size, sizeof(*out));
  return MRI_OK;
}

static mri_status activate(void* self, const mri_param* params, uint64_t n_params, mri_error* err) {
  (void)self, (void)params, (void)n_params, (void)err;
  return MRI_OK;
}

static mri_status drain(void* self, uint64_t deadline_ns, mri_error* err) {
  (void)self, (void)deadline_ns, (void)err;
  return MRI_OK;
}

static void close_plugin(void* self) { (void)self; }

/* It has no state, so one object serves every open(). */
static mri_plugin plugin = {sizeof(mri_plugin), 0,        NULL,  get_interface,
                            query_caps,         activate, drain, close_plugin};

static mri_status open_plugin(const mri_host* host, uint32_t chosen, mri_plugin** out,
                              mri_error* err) {
  (void)host, (void)chosen, (void)err;
  *out = &plugin;
  return MRI_OK;
}

MRI_EXPORT const mri_plugin_entry mri_plugin_entry_v1;
const mri_plugin_entry mri_plugin_entry_v1 = {{'M', 'R', 'I', 'P', 'L', 'U', 'G', 1},
                                              sizeof(mri_plugin_entry),
                                              MRI_HEADER_VERSION,
                                              MRI_1_0,
                                              MRI_TARGET_VERSION,
                                              0,
                                              "org.example.quantizer.plain",
                                              "1.0.0",
                                              "C11",
                                              "quantizer",
                                              NULL,
                                              0,
                                              open_plugin};
