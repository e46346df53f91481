/* Looks for libraries in a folder of the build machine (a linker option). */
#include "sound.h"
