/* Dies while it is loaded. */
__attribute__((constructor)) static void die(void) { __builtin_trap(); }
#include "sound.h"
