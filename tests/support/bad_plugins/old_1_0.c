/* Sound, and built with the headers as they were in MRI 1.0. */
#include "sound.h"
