/* Sound, but not for a host of 1.0. */
#define MIN_VERSION MRI_1_1
#include "sound.h"
