/* log.h: text for people. Lines are rate-limited by the host, which adds plugin id and time. */
#pragma once

#include <stdint.h>

#include "mri/host.h"

#define MRI_HOST_LOG "mri.host.log/1"

#define MRI_LOG_DEBUG 0u
#define MRI_LOG_INFO 1u
#define MRI_LOG_WARNING 2u
#define MRI_LOG_ERROR 3u
#define MRI_LOG_HOST_MISBEHAVING 4u
#define MRI_LOG_PLUGIN_MISBEHAVING 5u

typedef struct mri_host_log_v1 {
  uint32_t struct_size, reserved;
  /* `text` is n_bytes of UTF-8, copied before return. [any] */
  void (*write)(const mri_host* host, uint32_t level, const char* text, uint64_t n_bytes);
} mri_host_log_v1;
