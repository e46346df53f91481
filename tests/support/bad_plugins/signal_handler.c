/* Takes a signal from the host. */
#include <signal.h>

#include "mri/mri.h"
static void ignore(int number) { (void)number; }
static mri_status begin(void* self, const mri_param* params, uint64_t n_params, mri_error* err) {
  (void)self, (void)params, (void)n_params, (void)err;
  signal(SIGTERM, ignore);
  return MRI_OK;
}
#define ACTIVATE begin
#include "sound.h"
