// An attention's class has:
//   mri_status plan(const mri_attn_req&, mri_attn_plan&)   MRI_E_SPACE with the counts needed
//   (mri::Writer does this) void run(const mri_attn_req&, const mri_attn_plan&)
#pragma once

#include "mri/kind/attention.h"
#include "mri/sdk/plugin.hpp"

namespace mri::kind {

template <class Class>
struct attention {
  static mri_status plan(void* self, const mri_attn_req* req, mri_attn_plan* out, mri_error* err) {
    return call<Class>(self, req, out, err,
                       [](Class& c, const auto& in, auto& plan) { return c.plan(in, plan); });
  }
  static mri_status run(void* self, const mri_attn_req* req, const mri_attn_plan* plan,
                        mri_error* err) {
    return call<Class>(self, req, err, [plan](Class& c, const auto& in) {
      const Request<mri_attn_plan> list(plan);
      return c.run(in, *list);
    });
  }

  static constexpr mri_attention_v1 table = {sizeof(mri_attention_v1), 0, plan, run};
  static const void* find(std::string_view id) { return id == MRI_ATTENTION ? &table : nullptr; }
};

}  // namespace mri::kind
