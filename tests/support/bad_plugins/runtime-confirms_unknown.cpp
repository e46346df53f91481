// Confirms the eviction of blocks that no context can have.
#include "tests/support/bad_plugins/fake.h"

class Knows : public varve_fake::Fake {
 public:
  using varve_fake::Fake::Fake;
  void evict_kv(uint64_t ctx, const mri_evict_req& req, mri_evict_rsp& rsp) {
    Fake::evict_kv(ctx, req, rsp);
    for (uint64_t i = 0; i < req.n_ranges; ++i) {
      if (req.ranges[i].first > 4096) rsp.n_evicted += req.ranges[i].count;
    }
  }
};
BAD_PLUGIN(runtime, varve_fake::kParams, Knows);
