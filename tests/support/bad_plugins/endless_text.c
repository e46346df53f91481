/* Error text without an end, and not UTF-8. */
#include <string.h>

#include "mri/mri.h"
static mri_status shout(void* self, const mri_quant_encode_req* req, mri_error* err) {
  (void)self, (void)req;
  memset(err->msg, 0xff, sizeof(err->msg));
  err->msg_len = 100000;
  return MRI_E_DEVICE;
}
#define ENCODE shout
#include "sound.h"
