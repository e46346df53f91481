#define MIN_VERSION MRI_1_1
#define MAX_VERSION MRI_1_0
#include "sound.h"
