/* Nothing is wrong with this one: the control. */
#include "sound.h"
