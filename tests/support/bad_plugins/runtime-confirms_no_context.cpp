// Confirms evictions in contexts that do not exist.
#include "tests/support/bad_plugins/fake.h"

class Agrees : public varve_fake::Fake {
 public:
  using varve_fake::Fake::Fake;
  void evict_kv(uint64_t ctx, const mri_evict_req& req, mri_evict_rsp& rsp) {
    try {
      Fake::evict_kv(ctx, req, rsp);
    } catch (const mri::Error& e) {
      if (e.status() != MRI_E_NOT_FOUND) throw;
      for (uint64_t i = 0; i < req.n_ranges; ++i) rsp.n_evicted += req.ranges[i].count;
      rsp.confirm_state = MRI_CONFIRM_DONE;
      rsp.confirm_epoch = 1;
    }
  }
};
BAD_PLUGIN(runtime, varve_fake::kParams, Agrees);
