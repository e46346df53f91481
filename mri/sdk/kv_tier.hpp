// A kv_tier's class has:
//   mri_status decide(const mri_tier_req&, mri_tier_rsp&)   MRI_E_SPACE with the count needed
//   (mri::Writer does this)
#pragma once

#include "mri/kind/kv_tier.h"
#include "mri/sdk/plugin.hpp"

namespace mri::kind {

template <class Class>
struct kv_tier {
  static mri_status decide(void* self, const mri_tier_req* req, mri_tier_rsp* rsp, mri_error* err) {
    return call<Class>(self, req, rsp, err,
                       [](Class& c, const auto& in, auto& out) { return c.decide(in, out); });
  }

  static constexpr mri_kv_tier_v1 table = {sizeof(mri_kv_tier_v1), 0, decide};
  static const void* find(std::string_view id) { return id == MRI_KV_TIER ? &table : nullptr; }
};

}  // namespace mri::kind
