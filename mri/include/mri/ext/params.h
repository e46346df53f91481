/* params.h: a plugin states its parameters as data, the host checks a profile against them, and
 * activate() gets values. Units come last in a key's name (wait_us_max). Keys are snake_case,
 * unique within a plugin. */
#pragma once

#include <stdint.h>

#define MRI_PARAM_BOOL 1
#define MRI_PARAM_INT 2
#define MRI_PARAM_FLOAT 3
#define MRI_PARAM_STRING 4

/* One parameter that a plugin knows. 72 bytes, frozen. For strings, `choices` is a '|'-separated
 * list or NULL for free text. */
typedef struct mri_param_desc {
  const char* key;
  const char* help; /* one line: what it does, unit, what it costs */
  const char* choices;
  const char* default_string; /* strings only */
  uint32_t type;
  uint32_t reserved;
  double default_number; /* bool: 0 or 1 */
  double min, max;       /* inclusive; numbers only */
  uint64_t reserved1;
} mri_param_desc;

/* One value. 40 bytes, frozen. Only the member that `type` names is set. Valid for the call. */
typedef struct mri_param {
  const char* key;
  const char* string_value;
  int64_t int_value; /* also bool */
  double float_value;
  uint32_t type;
  uint32_t reserved;
} mri_param;
