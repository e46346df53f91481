#define ID "Not An Id"
#include "sound.h"
