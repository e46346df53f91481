/* buffer.h: memory that outlives a call and counts against the context's budget. Whoever allocates
 * frees. */
#pragma once

#include <stdint.h>

#include "mri/host.h"

#define MRI_HOST_BUFFER "mri.host.buffer/1"

typedef struct mri_host_buffer_v1 {
  uint32_t struct_size, reserved;
  /* `align` is a power of two <= 4096; NULL when the budget or memory is exhausted. Contents are
   * zero. [any] */
  void* (*alloc)(const mri_host* host, uint64_t bytes, uint64_t align, const char* tag);
  /* `p` from alloc, or NULL. [any] */
  void (*release)(const mri_host* host, void* p);
} mri_host_buffer_v1;
