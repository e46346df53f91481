/* MRI 2.0 as it might be: an entry of its own, and an eviction's answer whose first member moved,
 * which no minor version may do. For the tests of versions alone. */
#pragma once

#include "mri/abi/frozen_1_0/mri/base.h"
#include "mri/abi/frozen_1_0/mri/extensions.h"
#define n_evicted epoch_2_0, n_evicted
#include "mri/abi/frozen_1_0/mri/kinds.h"
#undef n_evicted

#undef MRI_HEADER_VERSION
#define MRI_HEADER_VERSION MRI_VERSION(2, 0)
#undef MRI_MAGIC
#define MRI_MAGIC "MRIPLUG\x02"
#define MRI_ENTRY mri_plugin_entry_v2
