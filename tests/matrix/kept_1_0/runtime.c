/* Counts tokens; offers mri.timings/1, which a runtime may leave out. A context's number is its
 * place + 1. One thread at a time. */
#include "plugin.h"

static uint64_t* tokens_of(void* self, uint64_t ctx) {
  object* o = self;
  if (ctx == 0 || ctx > CONTEXTS_MAX || o->context_tokens[ctx - 1] == 0) return NULL;
  return &o->context_tokens[ctx - 1];
}

static mri_status init_context(void* self, const mri_init_req* req, mri_init_rsp* rsp,
                               mri_error* err) {
  object* o = self;
  uint64_t place = 0;
  (void)err;
  if (IS_SHORT(req) || IS_SHORT(rsp)) return MRI_E_ARG;
  while (place < CONTEXTS_MAX && o->context_tokens[place] != 0) ++place;
  if (place == CONTEXTS_MAX) return MRI_E_NOMEM;
  o->context_tokens[place] = req->n_tokens + 1;
  rsp->ctx = place + 1;
  rsp->n_chunks = 1;
  rsp->usage.hot_tokens = req->n_tokens;
  FILLED(rsp, sizeof(*req));
  return MRI_OK;
}

static mri_status forward_step(void* self, const mri_step_req* req, mri_step_rsp* rsp,
                               mri_error* err) {
  uint64_t i;
  (void)err;
  if (IS_SHORT(req) || IS_SHORT(rsp)) return MRI_E_ARG;
  for (i = 0; i < req->n_seqs; ++i) {
    uint64_t* tokens = tokens_of(self, req->seqs[i].ctx);
    req->seqs[i].status = tokens == NULL ? MRI_E_NOT_FOUND : MRI_OK;
    if (tokens == NULL) continue;
    req->seqs[i].position = *tokens - 1;
    *tokens += req->seqs[i].n_tokens;
    rsp->n_tokens += req->seqs[i].n_tokens;
  }
  FILLED(rsp, sizeof(*req));
  return MRI_OK;
}

static mri_status get_kv_summary(void* self, uint64_t ctx, const mri_summary_req* req,
                                 mri_summary_rsp* rsp, mri_error* err) {
  const uint64_t* tokens = tokens_of(self, ctx);
  uint64_t at;
  (void)err;
  if (IS_SHORT(req) || IS_SHORT(rsp)) return MRI_E_ARG;
  if (tokens == NULL) return MRI_E_NOT_FOUND;
  for (at = 0; at < *tokens - 1; at += MRI_BLOCK_TOKENS) {
    const uint64_t left = *tokens - 1 - at;
    const mri_kv_block_info row = {at / MRI_BLOCK_TOKENS + 1, at,
                                   (uint32_t)(left < MRI_BLOCK_TOKENS ? left : MRI_BLOCK_TOKENS),
                                   MRI_TIER_HOT, 0};
    if (rsp->n_out < req->capacity) req->out[rsp->n_out] = row;
    ++rsp->n_out;
  }
  rsp->kv_epoch = 1;
  FILLED(rsp, sizeof(*req));
  return rsp->n_out <= req->capacity ? MRI_OK : MRI_E_SPACE;
}

static mri_status evict_kv(void* self, uint64_t ctx, const mri_evict_req* req, mri_evict_rsp* rsp,
                           mri_error* err) {
  const uint64_t* tokens = tokens_of(self, ctx);
  uint64_t i;
  (void)err;
  if (IS_SHORT(req) || IS_SHORT(rsp)) return MRI_E_ARG;
  if (tokens == NULL) return MRI_E_NOT_FOUND;
  for (i = 0; i < req->n_ranges; ++i) rsp->n_evicted += req->ranges[i].count;
  rsp->bytes_freed = 4 * rsp->n_evicted;
  FILLED(rsp, sizeof(*req));
  return MRI_OK;
}

static void release_context(void* self, uint64_t ctx) {
  uint64_t* tokens = tokens_of(self, ctx);
  if (tokens != NULL) *tokens = 0;
}

static mri_status enable(void* self, uint64_t ctx, uint32_t on, mri_error* err) {
  (void)on, (void)err;
  return tokens_of(self, ctx) == NULL ? MRI_E_NOT_FOUND : MRI_OK;
}

static mri_status read_timings(void* self, uint64_t ctx, mri_timings* out, mri_error* err) {
  const uint64_t* tokens = tokens_of(self, ctx);
  (void)err;
  if (IS_SHORT(out)) return MRI_E_ARG;
  if (tokens == NULL) return MRI_E_NOT_FOUND;
  out->n_tokens = *tokens - 1;
  FILLED(out, sizeof(*out));
  return MRI_OK;
}

static const void* lookup(void* self, const char* id) {
  static const mri_runtime_v1 table = {
      sizeof(mri_runtime_v1), 0,        init_context,   forward_step,
      get_kv_summary,         evict_kv, release_context};
  static const mri_timings_v1 timings = {sizeof(mri_timings_v1), 0, enable, read_timings};
  (void)self;
  if (strcmp(id, MRI_RUNTIME) == 0) return &table;
  return strcmp(id, MRI_TIMINGS) == 0 ? &timings : NULL;
}

KEPT_PLUGIN("runtime", "org.example.kept.runtime");
