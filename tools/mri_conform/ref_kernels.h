// The kernel table of kernels/ref, for plugins in a host without a runtime.
#pragma once

#include "mri/ext/kernels.h"

namespace varve {

// Reads mri_attn_req::rope; formats f32, bf16 and int8. Plain, and right by definition.
const mri_kernels_v1& ref_kernels();

}  // namespace varve
