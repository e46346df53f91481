/* The first page never comes back. */
#include <unistd.h>

#include "mri/mri.h"
static mri_status wait_for_ever(void* self, const mri_quant_encode_req* req, mri_error* err) {
  (void)self, (void)req, (void)err;
  while (sleep(1) == 0) continue;
  return MRI_E_BUSY;
}
#define ENCODE wait_for_ever
#include "sound.h"
