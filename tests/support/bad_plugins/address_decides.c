/* Claims determinism, but its bytes depend on where they lie. */
#include <string.h>

#include "mri/mri.h"
static mri_status mark(void* self, const mri_quant_encode_req* req, mri_error* err) {
  (void)self, (void)err;
  if (req == NULL) return MRI_E_ARG;
  memcpy(req->body, req->k, 128 * (uint64_t)req->head_dim);
  memcpy(req->body + 128 * (uint64_t)req->head_dim, req->v, 128 * (uint64_t)req->head_dim);
  req->body[0] = (uint8_t)((uintptr_t)req->body >> 6);
  return MRI_OK;
}
#define ENCODE mark
#include "sound.h"
