// Looks the reason up in a table of those that it knows.
#include <cstdlib>

#include "mri/sdk/kv_tier.hpp"
namespace {
class OldReasons {
 public:
  OldReasons(const mri::Host&, const mri::Params&) {}
  mri_status decide(const mri_tier_req& req, mri_tier_rsp& rsp) const {
    mri::Writer<mri_tier_action> out(rsp.actions, rsp.capacity, &rsp.n_actions);
    switch (req.why) {
      case MRI_TIER_WHY_APPEND:
      case MRI_TIER_WHY_PRESSURE:
      case MRI_TIER_WHY_QUERY:
        return out.status();
      default:
        std::abort();
    }
  }
};
}  // namespace
MRI_PLUGIN(kv_tier, "org.example.bad", "1.0.0", mri::kNoParams, OldReasons);
