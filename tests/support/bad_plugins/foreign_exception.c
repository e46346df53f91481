/* Raises an exception of another language. */
#include <stdlib.h>
#include <string.h>
#include <unwind.h>

#include "mri/mri.h"
static void forget(_Unwind_Reason_Code why, struct _Unwind_Exception* exception) {
  (void)why;
  free(exception);
}
static mri_status raise_it(void* self, const mri_quant_encode_req* req, mri_error* err) {
  struct _Unwind_Exception* exception = aligned_alloc(16, sizeof(*exception));
  (void)self, (void)req, (void)err;
  memset(exception, 0, sizeof(*exception));
  exception->exception_class = 0x4f54484552000000; /* "OTHER" */
  exception->exception_cleanup = forget;
  _Unwind_RaiseException(exception);
  return MRI_E_INTERNAL;
}
#define ENCODE raise_it
#include "sound.h"
