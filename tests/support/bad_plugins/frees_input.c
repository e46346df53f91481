/* Frees what belongs to the host. */
#include <stdlib.h>

#include "mri/mri.h"
static mri_status give_away(void* self, const mri_quant_encode_req* req, mri_error* err) {
  (void)self, (void)err;
  if (req == NULL) return MRI_E_ARG;
  free((void*)(uintptr_t)req->k);
  return MRI_OK;
}
#define ENCODE give_away
#include "sound.h"
