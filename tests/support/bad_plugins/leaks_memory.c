/* Keeps a megabyte of each life. */
#include <stdlib.h>
#include <string.h>

#include "mri/mri.h"
static void* volatile kept;
static mri_status begin(void* self, const mri_param* params, uint64_t n_params, mri_error* err) {
  (void)self, (void)params, (void)n_params, (void)err;
  kept = malloc(1 << 20);
  if (kept != NULL) memset(kept, 1, 1 << 20);
  return MRI_OK;
}
#define ACTIVATE begin
#include "sound.h"
