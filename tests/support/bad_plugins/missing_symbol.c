/* Calls what no library has; built without -z defs. */
#include "mri/mri.h"
mri_status function_that_is_nowhere(void);
static mri_status call_nowhere(void* self, const mri_quant_encode_req* req, mri_error* err) {
  (void)self, (void)req, (void)err;
  return function_that_is_nowhere();
}
#define ENCODE call_nowhere
#include "sound.h"
