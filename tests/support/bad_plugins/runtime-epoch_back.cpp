// Confirms from an epoch that never comes.
#include "tests/support/bad_plugins/fake.h"

class Back : public varve_fake::Fake {
 public:
  using varve_fake::Fake::Fake;
  void evict_kv(uint64_t ctx, const mri_evict_req& req, mri_evict_rsp& rsp) {
    Fake::evict_kv(ctx, req, rsp);
    rsp.confirm_epoch += 100;
  }
};
BAD_PLUGIN(runtime, varve_fake::kParams, Back);
