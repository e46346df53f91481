// A policy for tests: demotes block `first_block` and counts its calls.
#include "mri/sdk/kv_tier.hpp"

namespace {

constexpr mri_param_desc kParams[] = {
    mri::param_int("first_block", 0, 0, 1000, "number of the block to demote"),
    mri::param_float("share", 0.5, 0, 1, "unused"), mri::param_bool("eager", false, "demote twice"),
    mri::param_string("mode", "plain", "plain|fancy", "unused")};

class Probe {
 public:
  Probe(mri::Host host, const mri::Params& params)
      : host_(host),
        first_block_(params.get<uint64_t>("first_block")),
        eager_(params.get<bool>("eager")),
        calls_(host.define_metric(MRI_METRIC_COUNTER, "calls", "decide calls")) {
    if (params.get<std::string>("mode") == "fancy") throw mri::Error(MRI_E_UNSUPPORTED, "no fancy");
    if (params.get<float>("share") > 0.9f) throw 1;
    host_.log(MRI_LOG_INFO, "probe is ready");
  }

  mri_status decide(const mri_tier_req&, mri_tier_rsp& rsp) {
    host_.record(calls_, 1);
    mri::Writer<mri_tier_action> out(rsp.actions, rsp.capacity, &rsp.n_actions);
    for (int i = 0; i < (eager_ ? 2 : 1); ++i) {
      out.push({first_block_, MRI_TIER_DEMOTE, MRI_TIER_WARM, 0});
    }
    return out.status();
  }

 private:
  mri::Host host_;
  uint64_t first_block_;
  bool eager_;
  uint32_t calls_;
};

}  // namespace

MRI_PLUGIN(kv_tier, "org.varve.test.kv_tier", "1.2.3", kParams, Probe);
