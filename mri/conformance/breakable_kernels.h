// The host's kernels as on a device that breaks.
#pragma once

#include <cstdint>

#include "mri/ext/kernels.h"

namespace mri::conformance {

// `kernels`, whose calls that have a status give MRI_E_DEVICE while they are broken. One table in a
// process: kernels have no place to keep more.
const mri_kernels_v1& breakable(const mri_kernels_v1& kernels);

// From now on. Returns how many calls have failed since the last time.
uint64_t break_kernels(bool are_broken);

}  // namespace mri::conformance
