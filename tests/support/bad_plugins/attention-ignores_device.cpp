// Takes every kernel of the host for one that works.
#include "tests/support/bad_plugins/dense.h"

namespace {
class Ignores : public Dense {
 public:
  using Dense::Dense;
  void run(const mri_attn_req& req, const mri_attn_plan& plan) const { Dense::run(req, plan); }
};
}  // namespace
BAD_PLUGIN(attention, kParams, Ignores);
