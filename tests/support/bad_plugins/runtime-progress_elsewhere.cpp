// Tells its progress from a thread of its own.
#include "tests/support/bad_plugins/fake.h"

class Elsewhere : public varve_fake::Fake {
 public:
  using varve_fake::Fake::Fake;
  void init_context(const mri_init_req& req, mri_init_rsp& rsp) {
    mri_init_req quiet = req;
    quiet.progress = nullptr;
    Fake::init_context(quiet, rsp);
    if (req.progress == nullptr) return;
    std::thread(req.progress, req.progress_user, req.n_tokens, req.n_tokens).join();
  }
};
BAD_PLUGIN(runtime, varve_fake::kParams, Elsewhere);
