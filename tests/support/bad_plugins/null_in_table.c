#define DECODE NULL
#include "sound.h"
