/* Every hot block that may move becomes warm. */
#include "plugin.h"

static mri_status decide(void* self, const mri_tier_req* req, mri_tier_rsp* rsp, mri_error* err) {
  uint64_t i;
  (void)self, (void)err;
  if (IS_SHORT(req) || IS_SHORT(rsp)) return MRI_E_ARG;
  rsp->n_actions = 0;
  for (i = 0; i < req->n_blocks; ++i) {
    const mri_tier_action action = {req->blocks[i].id, MRI_TIER_DEMOTE, MRI_TIER_WARM, 0};
    if (req->blocks[i].flags != 0 || req->blocks[i].tier != MRI_TIER_HOT) continue;
    if (rsp->n_actions < rsp->capacity) rsp->actions[rsp->n_actions] = action;
    ++rsp->n_actions;
  }
  FILLED(rsp, sizeof(*req));
  return rsp->n_actions <= rsp->capacity ? MRI_OK : MRI_E_SPACE;
}

static const void* lookup(void* self, const char* id) {
  static const mri_kv_tier_v1 table = {sizeof(mri_kv_tier_v1), 0, decide};
  (void)self;
  return strcmp(id, MRI_KV_TIER) == 0 ? &table : NULL;
}

KEPT_PLUGIN("kv_tier", "org.example.kept.kv_tier");
