#define ACTIVATE NULL
#include "sound.h"
