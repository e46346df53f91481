// Claims MRI 1.1, but fills an eviction's answer only as far as 1.0 goes.
#include "tests/support/bad_plugins/fake.h"

class Short : public varve_fake::Fake {
 public:
  using varve_fake::Fake::Fake;
  void evict_kv(uint64_t ctx, const mri_evict_req& req, mri_evict_rsp& rsp) {
    Fake::evict_kv(ctx, req, rsp);
    rsp.hdr.written = MRI_EVICT_RSP_SIZE_1_0;
  }
};
BAD_PLUGIN(runtime, varve_fake::kParams, Short);
