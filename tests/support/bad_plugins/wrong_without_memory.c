/* Takes memory twice; when the second is not there it forgets the first and blames the caller. */
#include <stddef.h>

#include "mri/mri.h"
static const mri_host* known;
static void *first, *second;
static const mri_host_buffer_v1* memory(void) {
  return known->get_interface(known, MRI_HOST_BUFFER);
}
static mri_status begin(void* self, const mri_param* params, uint64_t n_params, mri_error* err) {
  (void)self, (void)params, (void)n_params, (void)err;
  second = NULL;
  if (memory() == NULL) return MRI_OK;
  first = memory()->alloc(known, 4096, 64, "first");
  if (first == NULL) return MRI_E_NOMEM;
  second = memory()->alloc(known, 4096, 64, "second");
  return second != NULL ? MRI_OK : MRI_E_ARG;
}
static void end(void* self) {
  (void)self;
  if (memory() == NULL || second == NULL) return;
  memory()->release(known, first);
  memory()->release(known, second);
}
static mri_status remember(const mri_host* host, uint32_t chosen, mri_plugin** out, mri_error* err);
#define OPEN remember
#define ACTIVATE begin
#define CLOSE end
#include "sound.h"
static mri_status remember(const mri_host* host, uint32_t chosen, mri_plugin** out,
                           mri_error* err) {
  (void)chosen, (void)err;
  known = host;
  *out = &plugin;
  return MRI_OK;
}
