/* Wants thread-local storage in the block that is handed out when the process starts. */
#include "mri/mri.h"
static _Thread_local char scratch[4096] __attribute__((tls_model("initial-exec")));
static mri_status scribble(void* self, const mri_quant_encode_req* req, mri_error* err) {
  (void)self, (void)err;
  scratch[req->head_dim % 4096] = 1;
  return scratch[0];
}
#define ENCODE scribble
#include "sound.h"
