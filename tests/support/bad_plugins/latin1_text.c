/* Says what failed in ISO 8859-1. */
#include <string.h>

#include "mri/mri.h"
static mri_status complain(void* self, const mri_quant_encode_req* req, mri_error* err) {
  static const char text[] = "Ger\xe4t fehlt";
  (void)self, (void)req;
  if (err == NULL) return MRI_E_DEVICE;
  memcpy(err->msg, text, sizeof(text));
  err->msg_len = sizeof(text) - 1;
  return err->status = MRI_E_DEVICE;
}
#define ENCODE complain
#include "sound.h"
