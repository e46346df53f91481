// Serves the highest priority alone, for ever.
#include <algorithm>

#include "mri/sdk/batching.hpp"
namespace {
class Strict {
 public:
  Strict(const mri::Host&, const mri::Params&) {}
  mri_status next_step(const mri_batch_req& req, mri_batch_rsp& rsp) const {
    mri::Writer<mri_batch_pick> out(rsp.picks, rsp.capacity, &rsp.n_picks);
    const auto* end = req.requests + req.n_requests;
    const auto* best = std::max_element(req.requests, end,
                                        [](auto& a, auto& b) { return a.priority < b.priority; });
    if (best != end && req.step_tokens_max > 0)
      out.push({static_cast<uint32_t>(best - req.requests), 1, 0, 0});
    return out.status();
  }
};
}  // namespace
MRI_PLUGIN(batching, "org.example.bad", "1.0.0", mri::kNoParams, Strict);
