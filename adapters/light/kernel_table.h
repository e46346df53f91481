// kernel_table.h: kernels/ behind mri/ext/kernels.h, for the plugins of a stack.
#pragma once

#include "adapters/light/kv/store.h"
#include "kernels/attend.h"
#include "mri/ext/kernels.h"

namespace varve::light {

// What mri_attn_req::runtime points to in requests of this engine. Outlives them.
struct AttentionRuntime {
  const KvStore* store;
  kernels::Compute compute;
  kernels::RopeTable rope;
};

// The same table for every engine: calls that need one find it in the request.
const mri_kernels_v1* kernel_table();

}  // namespace varve::light
