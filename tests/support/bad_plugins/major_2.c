#define MIN_VERSION MRI_VERSION(2, 0)
#define MAX_VERSION MRI_VERSION(2, 0)
#include "sound.h"
