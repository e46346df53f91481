#include "mri/mri.h"
static mri_status invent(void* self, const mri_quant_encode_req* req, mri_error* err) {
  (void)self, (void)req, (void)err;
  return 12345;
}
#define ENCODE invent
#include "sound.h"
