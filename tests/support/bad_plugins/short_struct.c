#define STRUCT_SIZE 40
#include "sound.h"
