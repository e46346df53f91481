/* Claims to have written more than the caller has room for. */
#include "mri/mri.h"
static mri_status claim(void* self, uint32_t head_dim, mri_quant_desc* out, mri_error* err) {
  (void)self, (void)head_dim, (void)err;
  out->hdr.written = out->hdr.struct_size + 8;
  out->hdr.req_seen = out->hdr.struct_size;
  return MRI_OK;
}
#define DESCRIBE claim
#include "sound.h"
