/* Ends the process, as if all were well. */
#include <stdlib.h>

#include "mri/mri.h"
static mri_status leave(void* self, mri_caps* out, mri_error* err) {
  (void)self, (void)out, (void)err;
  exit(0);
}
#define QUERY_CAPS leave
#include "sound.h"
