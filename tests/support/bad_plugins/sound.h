/* A sound quantizer in C, in pieces: 32 bits a value, copied. A bad plugin defines the macro of the
 * piece that it replaces, then includes this: what is left is right, so that a test sees one fault
 * at a time. */
#pragma once

#include <stdint.h>
#include <string.h>

#include "mri/mri.h"

#define PAGE_BYTES(head_dim) (MRI_BLOCK_TOKENS * (uint64_t)(head_dim) * sizeof(float))
#define BODY_BYTES(head_dim) (2 * PAGE_BYTES(head_dim))

/* Says how much of `rsp` was filled. */
#define FILLED(rsp, type)                                                             \
  ((rsp)->hdr.written =                                                               \
       (rsp)->hdr.struct_size < sizeof(type) ? (rsp)->hdr.struct_size : sizeof(type), \
   (rsp)->hdr.req_seen = (rsp)->hdr.written)
#define IS_SHORT(p, type) ((p) == NULL || (p)->hdr.struct_size < sizeof(type))

#ifndef DESCRIBE
#define DESCRIBE describe
static mri_status describe(void* self, uint32_t head_dim, mri_quant_desc* out, mri_error* err) {
  (void)self, (void)err;
  if (IS_SHORT(out, mri_quant_desc)) return MRI_E_ARG;
  if (head_dim == 0 || head_dim > 1024) return MRI_E_UNSUPPORTED;
  out->format = MRI_KV_CUSTOM;
  out->body_bytes = BODY_BYTES(head_dim);
  out->bits_per_value = 32;
  FILLED(out, mri_quant_desc);
  return MRI_OK;
}
#endif

#ifndef ENCODE
#define ENCODE encode
static mri_status encode(void* self, const mri_quant_encode_req* req, mri_error* err) {
  (void)self, (void)err;
  if (IS_SHORT(req, mri_quant_encode_req) || req->body == NULL) return MRI_E_ARG;
  memcpy(req->body, req->k, PAGE_BYTES(req->head_dim));
  memcpy(req->body + PAGE_BYTES(req->head_dim), req->v, PAGE_BYTES(req->head_dim));
  return MRI_OK;
}
#endif

#ifndef DECODE
#define DECODE decode
static mri_status decode(void* self, const mri_quant_decode_req* req, mri_error* err) {
  (void)self, (void)err;
  if (IS_SHORT(req, mri_quant_decode_req) || req->body == NULL) return MRI_E_ARG;
  memcpy(req->k, req->body, PAGE_BYTES(req->head_dim));
  memcpy(req->v, req->body + PAGE_BYTES(req->head_dim), PAGE_BYTES(req->head_dim));
  return MRI_OK;
}
#endif

static const mri_quantizer_v1 table = {sizeof(mri_quantizer_v1), 0, DESCRIBE, ENCODE, DECODE};

#ifndef GET_INTERFACE
#define GET_INTERFACE get_interface
static const void* get_interface(void* self, const char* id) {
  (void)self;
  return strcmp(id, MRI_QUANTIZER) == 0 ? &table : NULL;
}
#endif

#ifndef ACTIVATE
#define ACTIVATE activate
static mri_status activate(void* self, const mri_param* params, uint64_t n_params, mri_error* err) {
  (void)self, (void)params, (void)err;
  return n_params == 0 ? MRI_OK : MRI_E_ARG;
}
#endif

#ifndef QUERY_CAPS
#define QUERY_CAPS query_caps
static mri_status query_caps(void* self, mri_caps* out, mri_error* err) {
  (void)self, (void)err;
  if (IS_SHORT(out, mri_caps)) return MRI_E_ARG;
  out->thread_model = 3;
  out->determinism = 3;
  FILLED(out, mri_caps);
  return MRI_OK;
}
#endif
static mri_status drain(void* self, uint64_t deadline_ns, mri_error* err) {
  (void)self, (void)deadline_ns, (void)err;
  return MRI_OK;
}
#ifndef CLOSE
#define CLOSE close_plugin
static void close_plugin(void* self) { (void)self; }
#endif

__attribute__((unused)) static mri_plugin plugin = {
    sizeof(mri_plugin), 0, NULL, GET_INTERFACE, QUERY_CAPS, ACTIVATE, drain, CLOSE};

#ifndef OPEN
#define OPEN open_plugin
static mri_status open_plugin(const mri_host* host, uint32_t chosen, mri_plugin** out,
                              mri_error* err) {
  (void)host, (void)chosen, (void)err;
  *out = &plugin;
  return MRI_OK;
}
#endif

#ifndef MAGIC
#define MAGIC \
  { 'M', 'R', 'I', 'P', 'L', 'U', 'G', 1 }
#endif
#ifndef STRUCT_SIZE
#define STRUCT_SIZE sizeof(mri_plugin_entry)
#endif
#ifndef MIN_VERSION
#define MIN_VERSION MRI_1_0
#endif
#ifndef MAX_VERSION
#define MAX_VERSION MRI_HEADER_VERSION
#endif
#ifndef ID
#define ID "org.example.bad"
#endif
#ifndef KIND
#define KIND "quantizer"
#endif
#ifndef PARAMS
#define PARAMS NULL
#define N_PARAMS 0
#endif
#ifndef ENTRY
#define ENTRY mri_plugin_entry_v1
#endif

MRI_EXPORT const mri_plugin_entry ENTRY;
const mri_plugin_entry ENTRY = {
    MAGIC, STRUCT_SIZE, MRI_HEADER_VERSION, MIN_VERSION, MAX_VERSION, 0, ID, "1.0.0", "test",
    KIND,  PARAMS,      N_PARAMS,           OPEN};
