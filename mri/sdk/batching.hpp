// A batching's class has:
//   mri_status next_step(const mri_batch_req&, mri_batch_rsp&)
#pragma once

#include "mri/kind/batching.h"
#include "mri/sdk/plugin.hpp"

namespace mri::kind {

template <class Class>
struct batching {
  static mri_status next_step(void* self, const mri_batch_req* req, mri_batch_rsp* rsp,
                              mri_error* err) {
    return call<Class>(self, req, rsp, err,
                       [](Class& c, const auto& in, auto& out) { return c.next_step(in, out); });
  }

  static constexpr mri_batching_v1 table = {sizeof(mri_batching_v1), 0, next_step};
  static const void* find(std::string_view id) { return id == MRI_BATCHING ? &table : nullptr; }
};

}  // namespace mri::kind
