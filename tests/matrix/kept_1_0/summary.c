/* Each token stands for itself. */
#include "plugin.h"

static uint32_t pairs_max(void* self, uint32_t n_tokens) {
  (void)self;
  return n_tokens;
}

static mri_status make(void* self, const mri_summary_make_req* req, mri_summary_make_rsp* rsp,
                       mri_error* err) {
  uint32_t t;
  (void)self, (void)err;
  if (IS_SHORT(req) || IS_SHORT(rsp)) return MRI_E_ARG;
  if (rsp->pairs_capacity < req->n_tokens) return MRI_E_SPACE;
  memcpy(rsp->k, req->k, (uint64_t)req->n_tokens * req->head_dim * sizeof(float));
  memcpy(rsp->v, req->v, (uint64_t)req->n_tokens * req->head_dim * sizeof(float));
  for (t = 0; t < req->n_tokens; ++t) rsp->log_count[t] = 0;
  rsp->n_pairs = req->n_tokens;
  FILLED(rsp, sizeof(*req));
  return MRI_OK;
}

static const void* lookup(void* self, const char* id) {
  static const mri_summary_v1 table = {sizeof(mri_summary_v1), 0, pairs_max, make};
  (void)self;
  return strcmp(id, MRI_SUMMARY) == 0 ? &table : NULL;
}

KEPT_PLUGIN("summary", "org.example.kept.summary");
