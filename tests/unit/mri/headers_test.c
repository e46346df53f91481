/* The headers are C11, and say the version that they promise. That this compiles is the test. */
#include <stddef.h>

#include "mri/mri.h"

#if MRI_HEADER_VERSION != MRI_VERSION(1, 1)
#error "a new version needs a new layout table and a row in mri/CHANGES.md"
#endif

_Static_assert(sizeof(MRI_MAGIC) - 1 == sizeof(((mri_plugin_entry*)0)->magic), "magic");
_Static_assert(sizeof(mri_evict_rsp) == MRI_EVICT_RSP_SIZE_1_1, "1.1");
_Static_assert(offsetof(mri_evict_rsp, confirm_state) == MRI_EVICT_RSP_SIZE_1_0, "1.0");
