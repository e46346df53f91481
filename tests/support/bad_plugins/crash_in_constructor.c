/* Dies while it is loaded. */
__attribute__((constructor)) static void die(void) { *(volatile int*)16 = 1; }
#include "sound.h"
