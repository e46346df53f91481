#define OPEN NULL
#include "sound.h"
