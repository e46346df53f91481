#include <pthread.h>

#include "mri/mri.h"
static mri_status cancel(void* self, const mri_quant_encode_req* req, mri_error* err) {
  (void)self, (void)req, (void)err;
  pthread_cancel(pthread_self());
  pthread_testcancel();
  return MRI_OK;
}
#define ENCODE cancel
#include "sound.h"
