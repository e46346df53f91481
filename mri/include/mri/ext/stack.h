/* stack.h: how a runtime reaches the other plugins of its stack. */
#pragma once

#include <stdint.h>

#include "mri/host.h"

#define MRI_HOST_STACK "mri.host.stack/1"

typedef struct mri_host_stack_v1 {
  uint32_t struct_size, reserved;
  /* The table of the stack's plugin that offers interface `id` ("mri.kv_tier/1"), with its self
   * pointer in *self; NULL when the profile names none. The tables are the host's proxies: they
   * check states and contain failures. Several summary plugins may exist; `ordinal` counts them
   * from 0. Never the caller itself. Legal from activate() on. [any] */
  const void* (*find)(const mri_host* host, const char* id, uint32_t ordinal, void** self);
} mri_host_stack_v1;
