// Claims that calls only enqueue work, and waits in each run.
#include <chrono>
#include <thread>

#include "tests/support/bad_plugins/dense.h"

namespace {
class Waits : public Dense {
 public:
  using Dense::Dense;
  static void caps(mri_caps& caps) { caps.sync_model = 1; }
  mri_status run(const mri_attn_req& req, const mri_attn_plan& plan) const {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Dense::run(req, plan);
  }
};
}  // namespace
BAD_PLUGIN(attention, kParams, Waits);
