#define KIND "oracle"
#include "sound.h"
