/* metrics.h: a fixed set of numbers, registered at open(); the host adds the labels. */
#pragma once

#include <stdint.h>

#include "mri/host.h"

#define MRI_HOST_METRICS "mri.host.metrics/1"

#define MRI_METRIC_COUNTER 1u
#define MRI_METRIC_GAUGE 2u
#define MRI_METRIC_HISTOGRAM 3u

typedef struct mri_host_metrics_v1 {
  uint32_t struct_size, reserved;
  /* Returns an id > 0, or 0 when the name is not [a-z0-9_]+, is known with another kind, or the
   * plugin has too many. [control] */
  uint32_t (*define)(const mri_host* host, uint32_t kind, const char* name, const char* help);
  /* Counter: adds (value >= 0). Gauge: sets. Histogram: observes. Unknown ids are ignored. [any] */
  void (*record)(const mri_host* host, uint32_t id, double value);
} mri_host_metrics_v1;
