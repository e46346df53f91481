/* What the six plugins share: an object per open(), every service of the host used where it is
 * offered, and the entry. The file of a kind includes this, defines `lookup` and then says
 * KEPT_PLUGIN(kind, id). Needs MRI 1.0 alone; the newest version it speaks is that of its headers.
 */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "mri/mri.h"

#ifndef MRI_ENTRY /* a later major has a symbol of its own */
#define MRI_ENTRY mri_plugin_entry_v1
#endif

/* Says how much of an answer was filled: no more than the caller has. */
#define FILLED(rsp, req_bytes)                                                              \
  ((rsp)->hdr.written = (rsp)->hdr.struct_size < sizeof(*(rsp)) ? (rsp)->hdr.struct_size    \
                                                                : (uint32_t)sizeof(*(rsp)), \
   (rsp)->hdr.req_seen = (uint32_t)(req_bytes))
#define IS_SHORT(p) ((p) == NULL || (p)->hdr.struct_size < sizeof(*(p)))

#define CONTEXTS_MAX 8u

typedef struct object {
  mri_plugin api;
  const mri_host* host;
  const mri_host_buffer_v1* buffer; /* where `scratch` is from; NULL: malloc */
  void* scratch;
  uint64_t context_tokens[CONTEXTS_MAX]; /* of runtimes: tokens + 1, 0 for a free place */
} object;

static const void* lookup(void* self, const char* id);

static void count_up(void* user, uint64_t i, uint32_t worker) {
  (void)i, (void)worker;
  __atomic_fetch_add((uint64_t*)user, 1, __ATOMIC_RELAXED);
}

/* Each service may be missing. */
static mri_status use_services(object* o) {
  const mri_host* host = o->host;
  const mri_host_log_v1* log = host->get_interface(host, MRI_HOST_LOG);
  const mri_host_metrics_v1* metrics = host->get_interface(host, MRI_HOST_METRICS);
  const mri_host_threads_v1* threads = host->get_interface(host, MRI_HOST_THREADS);
  uint64_t n = 0;
  o->buffer = host->get_interface(host, MRI_HOST_BUFFER);
  o->scratch = o->buffer != NULL ? o->buffer->alloc(host, 4096, 64, "scratch") : malloc(4096);
  if (o->scratch == NULL) return MRI_E_NOMEM;
  if (log != NULL) log->write(host, MRI_LOG_INFO, "activated", 9);
  if (metrics != NULL) {
    metrics->record(host, metrics->define(host, MRI_METRIC_COUNTER, "activations", "lives"), 1);
  }
  if (threads != NULL) threads->parallel_for(host, 10, count_up, &n);
  return threads == NULL || n == 10 ? MRI_OK : MRI_E_INTERNAL;
}

static mri_status query_caps(void* self, mri_caps* out, mri_error* err) {
  (void)self, (void)err;
  if (IS_SHORT(out)) return MRI_E_ARG;
  out->thread_model = 2;
  out->determinism = 3;
  out->sync_model = 2;
  FILLED(out, sizeof(*out));
  return MRI_OK;
}

static mri_status activate(void* self, const mri_param* params, uint64_t n_params, mri_error* err) {
  (void)params, (void)err;
  return n_params == 0 ? use_services(self) : MRI_E_ARG;
}

static mri_status drain(void* self, uint64_t deadline_ns, mri_error* err) {
  (void)self, (void)deadline_ns, (void)err;
  return MRI_OK;
}

static void close_object(void* self) {
  object* o = self;
  if (o->buffer != NULL) {
    o->buffer->release(o->host, o->scratch);
  } else {
    free(o->scratch);
  }
  free(o);
}

static mri_status open_object(const mri_host* host, uint32_t chosen, mri_plugin** out,
                              mri_error* err) {
  const mri_plugin api = {sizeof(mri_plugin), 0,        NULL,  lookup,
                          query_caps,         activate, drain, close_object};
  object* o = calloc(1, sizeof(object));
  (void)err;
  if (o == NULL) return MRI_E_NOMEM;
  if (chosen != host->negotiated || chosen > MRI_HEADER_VERSION) {
    free(o);
    return MRI_E_VERSION;
  }
  o->api = api;
  o->api.self = o;
  o->host = host;
  *out = &o->api;
  return MRI_OK;
}

#define KEPT_PLUGIN(kind_, id_)                                                    \
  MRI_EXPORT const mri_plugin_entry MRI_ENTRY;                                     \
  const mri_plugin_entry MRI_ENTRY = {MRI_MAGIC,                                   \
                                      sizeof(mri_plugin_entry),                    \
                                      MRI_HEADER_VERSION,                          \
                                      MRI_VERSION(MRI_HEADER_VERSION / 65536u, 0), \
                                      MRI_HEADER_VERSION,                          \
                                      0,                                           \
                                      id_,                                         \
                                      "1.0.0",                                     \
                                      __VERSION__,                                 \
                                      kind_,                                       \
                                      NULL,                                        \
                                      0,                                           \
                                      open_object}
