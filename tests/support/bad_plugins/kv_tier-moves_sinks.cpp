// Demotes every block, also those that must stay.
#include "mri/sdk/kv_tier.hpp"
namespace {
class Greedy {
 public:
  Greedy(const mri::Host&, const mri::Params&) {}
  mri_status decide(const mri_tier_req& req, mri_tier_rsp& rsp) const {
    mri::Writer<mri_tier_action> out(rsp.actions, rsp.capacity, &rsp.n_actions);
    for (uint64_t i = 0; i < req.n_blocks; ++i) {
      if (req.blocks[i].tier != MRI_TIER_COLD)
        out.push({req.blocks[i].id, MRI_TIER_DEMOTE, MRI_TIER_COLD, 0});
    }
    return out.status();
  }
};
}  // namespace
MRI_PLUGIN(kv_tier, "org.example.bad", "1.0.0", mri::kNoParams, Greedy);
