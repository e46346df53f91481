// A summary's class has:
//   uint32_t pairs_max(uint32_t n_tokens)
//   void make(const mri_summary_make_req&, mri_summary_make_rsp&)
#pragma once

#include "mri/kind/summary.h"
#include "mri/sdk/plugin.hpp"

namespace mri::kind {

template <class Class>
struct summary {
  static uint32_t pairs_max(void* self, uint32_t n_tokens) {
    uint32_t pairs = 0;
    guard(nullptr, [&] { pairs = object<Class>(self).pairs_max(n_tokens); });
    return pairs;
  }
  static mri_status make(void* self, const mri_summary_make_req* req, mri_summary_make_rsp* rsp,
                         mri_error* err) {
    return call<Class>(self, req, rsp, err,
                       [](Class& c, const auto& in, auto& out) { return c.make(in, out); });
  }

  static constexpr mri_summary_v1 table = {sizeof(mri_summary_v1), 0, pairs_max, make};
  static const void* find(std::string_view id) { return id == MRI_SUMMARY ? &table : nullptr; }
};

}  // namespace mri::kind
