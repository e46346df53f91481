/* Takes one size only, so that it breaks with the next minor version. */
#include "mri/mri.h"
static mri_status one_size(void* self, uint32_t head_dim, mri_quant_desc* out, mri_error* err) {
  (void)self, (void)err;
  if (out->hdr.struct_size != sizeof(*out)) return MRI_E_ARG;
  out->format = MRI_KV_CUSTOM;
  out->body_bytes = 256 * (uint64_t)head_dim;
  out->bits_per_value = 32;
  out->hdr.written = sizeof(*out);
  out->hdr.req_seen = sizeof(*out);
  return MRI_OK;
}
#define DESCRIBE one_size
#include "sound.h"
