// Everything stays hot. Under pressure nothing is offered, so a context that outgrows its budget
// fails alone.
#include "mri/sdk/kv_tier.hpp"

namespace {

class Full {
 public:
  Full(const mri::Host&, const mri::Params&) {}

  static void caps(mri_caps& caps) {
    caps.thread_model = 3;
    caps.determinism = 3;
  }

  mri_status decide(const mri_tier_req&, mri_tier_rsp& rsp) const {
    rsp.n_actions = 0;
    return MRI_OK;
  }
};

}  // namespace

MRI_PLUGIN(kv_tier, "dev.varve.kv_tier.full", "0.1.0", mri::kNoParams, Full);
