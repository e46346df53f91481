// Asks the host for itself, and ends a context in the midst of its step.
#include "tests/support/bad_plugins/fake.h"

class Reenters : public varve_fake::Fake {
 public:
  Reenters(mri::Host host, const mri::Params& params)
      : Fake(host, params), self_(host.peer<mri_runtime_v1>(MRI_RUNTIME)) {}
  void forward_step(const mri_step_req& req, mri_step_rsp& rsp, mri_error* err) {
    if (self_) self_.table->release_context(self_.self, req.seqs[0].ctx);
    Fake::forward_step(req, rsp, err);
  }

 private:
  mri::Peer<mri_runtime_v1> self_;
};
BAD_PLUGIN(runtime, varve_fake::kParams, Reenters);
