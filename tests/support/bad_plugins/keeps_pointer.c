/* Writes to a body that it got in an earlier call. */
#include <stddef.h>

#include "mri/mri.h"
static uint8_t* borrowed;
static mri_status late(void* self, const mri_quant_encode_req* req, mri_error* err) {
  (void)self, (void)err;
  if (req == NULL) return MRI_E_ARG;
  if (borrowed != NULL) borrowed[0] ^= 1;
  borrowed = req->body;
  return MRI_OK;
}
#define ENCODE late
#include "sound.h"
