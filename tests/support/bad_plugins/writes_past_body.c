#include <string.h>

#include "mri/mri.h"
static mri_status spill(void* self, const mri_quant_encode_req* req, mri_error* err) {
  (void)self, (void)err;
  if (req == NULL) return MRI_E_ARG;
  memset(req->body, 0, 256 * (uint64_t)req->head_dim + 16);
  return MRI_OK;
}
#define ENCODE spill
#include "sound.h"
