/* Needs a version of a system library that is not out yet; newer_library.c pretends to be it. */
#include "mri/mri.h"
int function_of_the_future(void);
static mri_status from_the_future(void* self, const mri_quant_encode_req* req, mri_error* err) {
  (void)self, (void)req, (void)err;
  return function_of_the_future();
}
#define ENCODE from_the_future
#include "sound.h"
