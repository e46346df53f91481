#include <stdlib.h>
static void give_up(void* self) {
  (void)self;
  abort();
}
#define CLOSE give_up
#include "sound.h"
