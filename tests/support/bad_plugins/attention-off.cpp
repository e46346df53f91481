// Exact attention, but for the value's scale.
#include "tests/support/bad_plugins/dense.h"

namespace {
class Off : public Dense {
 public:
  using Dense::Dense;
  mri_status run(const mri_attn_req& req, const mri_attn_plan& plan) const {
    const mri_status status = Dense::run(req, plan);
    for (uint32_t s = 0; s < req.n_seqs; ++s) {
      const uint64_t row = uint64_t{req.n_heads} * req.head_dim, at = req.seqs[s].first_row * row;
      for (uint64_t i = at; i < at + req.seqs[s].n_queries * row; ++i) req.o[i] *= 1.1f;
    }
    return status;
  }
};
}  // namespace
BAD_PLUGIN(attention, kParams, Off);
