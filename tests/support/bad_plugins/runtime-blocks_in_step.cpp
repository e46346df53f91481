// Claims that calls only enqueue work, and waits in each step.
#include "tests/support/bad_plugins/fake.h"

class Waits : public varve_fake::Fake {
 public:
  using varve_fake::Fake::Fake;
  static void caps(mri_caps& caps) { caps.sync_model = 1; }
  void forward_step(const mri_step_req& req, mri_step_rsp& rsp, mri_error* err) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    Fake::forward_step(req, rsp, err);
  }
};
BAD_PLUGIN(runtime, varve_fake::kParams, Waits);
