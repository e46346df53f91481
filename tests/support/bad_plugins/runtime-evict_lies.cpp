// Confirms evictions that it does not make.
#include "tests/support/bad_plugins/fake.h"

class Liar : public varve_fake::Fake {
 public:
  using varve_fake::Fake::Fake;
  void evict_kv(uint64_t ctx, const mri_evict_req& req, mri_evict_rsp& rsp) {
    mri_evict_req none = req;
    none.n_ranges = 0;
    Fake::evict_kv(ctx, none, rsp);
    for (uint64_t i = 0; i < req.n_ranges; ++i) rsp.n_evicted += req.ranges[i].count;
  }
};
BAD_PLUGIN(runtime, varve_fake::kParams, Liar);
