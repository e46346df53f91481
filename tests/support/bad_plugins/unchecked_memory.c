/* Believes that the host always has memory. */
#include <string.h>

#include "mri/mri.h"
static const mri_host* known;
static void* table_memory;
static const mri_host_buffer_v1* memory(void) {
  return known->get_interface(known, MRI_HOST_BUFFER);
}
static mri_status begin(void* self, const mri_param* params, uint64_t n_params, mri_error* err) {
  (void)self, (void)params, (void)n_params, (void)err;
  if (memory() == NULL) return MRI_OK;
  table_memory = memory()->alloc(known, 4096, 64, "table");
  memset(table_memory, 0, 4096);
  return MRI_OK;
}
static void end(void* self) {
  (void)self;
  if (memory() != NULL) memory()->release(known, table_memory);
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
