/* Speaks major 2 alone, and says so in the name of its entry. */
#define ENTRY mri_plugin_entry_v2
#include "sound.h"
