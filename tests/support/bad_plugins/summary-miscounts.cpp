// One pair, the first token, that stands for one token however many there are.
#include <algorithm>

#include "mri/sdk/summary.hpp"
namespace {
class First {
 public:
  First(const mri::Host&, const mri::Params&) {}
  uint32_t pairs_max(uint32_t) const { return 1; }
  void make(const mri_summary_make_req& req, mri_summary_make_rsp& rsp) const {
    if (rsp.pairs_capacity < 1) throw mri::Error(MRI_E_SPACE, "no room");
    std::copy_n(req.k, req.head_dim, rsp.k);
    std::copy_n(req.v, req.head_dim, rsp.v);
    rsp.log_count[0] = 0;
    rsp.n_pairs = 1;
  }
};
}  // namespace
MRI_PLUGIN(summary, "org.example.bad", "1.0.0", mri::kNoParams, First);
