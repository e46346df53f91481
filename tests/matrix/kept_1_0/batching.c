/* First come, first served: one token each, those that run already before those that wait. */
#include "plugin.h"

static mri_status next_step(void* self, const mri_batch_req* req, mri_batch_rsp* rsp,
                            mri_error* err) {
  uint64_t i;
  uint32_t running;
  (void)self, (void)err;
  if (IS_SHORT(req) || IS_SHORT(rsp)) return MRI_E_ARG;
  rsp->n_picks = 0;
  for (running = 2; running-- > 0;) {
    for (i = 0; i < req->n_requests; ++i) {
      const mri_batch_pick pick = {(uint32_t)i, 1, 0, 0};
      if (req->requests[i].running != running) continue;
      if (rsp->n_picks == req->sequences_max || rsp->n_picks == req->step_tokens_max) break;
      if (rsp->n_picks == rsp->capacity) return MRI_E_SPACE;
      rsp->picks[rsp->n_picks++] = pick;
    }
  }
  FILLED(rsp, sizeof(*req));
  return MRI_OK;
}

static const void* lookup(void* self, const char* id) {
  static const mri_batching_v1 table = {sizeof(mri_batching_v1), 0, next_step};
  (void)self;
  return strcmp(id, MRI_BATCHING) == 0 ? &table : NULL;
}

KEPT_PLUGIN("batching", "org.example.kept.batching");
