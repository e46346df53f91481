/* Claims to have filled half a member. */
#include <stddef.h>

#include "mri/mri.h"
static mri_status half(void* self, uint32_t head_dim, mri_quant_desc* out, mri_error* err) {
  (void)self, (void)err;
  if (out == NULL || out->hdr.struct_size < sizeof(*out)) return MRI_E_ARG;
  out->format = MRI_KV_CUSTOM;
  out->body_bytes = 256 * (uint64_t)head_dim;
  out->bits_per_value = 32;
  out->hdr.written = out->hdr.req_seen = sizeof(*out) - 3;
  return MRI_OK;
}
#define DESCRIBE half
#include "sound.h"
