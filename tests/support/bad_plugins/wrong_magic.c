#define MAGIC \
  { 'M', 'R', 'I', 'P', 'L', 'U', 'G', 2 }
#include "sound.h"
