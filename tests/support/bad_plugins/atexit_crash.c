/* Has an exit handler that dies: the process ends badly although every call went well. */
#include <stdlib.h>

#include "mri/mri.h"
static void die(void) { abort(); }
static mri_status begin(void* self, const mri_param* params, uint64_t n_params, mri_error* err) {
  (void)self, (void)params, (void)n_params, (void)err;
  return atexit(die) == 0 ? MRI_OK : MRI_E_NOMEM;
}
#define ACTIVATE begin
#include "sound.h"
