/* host.h: what a plugin may ask of the host. Offered interfaces are in ext/; each has a string id.
 */
#pragma once

#include <stdint.h>

#include "mri/status.h"

typedef struct mri_host mri_host;

/* Lives as long as the process. 48 bytes in 1.0; grows at the end. */
struct mri_host {
  uint32_t struct_size;
  uint32_t negotiated; /* the version chosen for this plugin */
  uint32_t min_version, max_version;
  const char* host_name;
  const char* host_version;
  void* self;
  /* The table of interface `id`, or NULL when it is not offered. [any] */
  const void* (*get_interface)(const mri_host* host, const char* id);
};
