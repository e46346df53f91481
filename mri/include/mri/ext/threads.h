/* threads.h: work for several cores without threads of one's own (two OpenMP runtimes in a process
 * fight). */
#pragma once

#include <stdint.h>

#include "mri/host.h"

#define MRI_HOST_THREADS "mri.host.threads/1"

typedef struct mri_host_threads_v1 {
  uint32_t struct_size, reserved;
  /* Threads that parallel_for may use, the caller included; worker numbers are below it. [any] */
  uint32_t (*concurrency)(const mri_host* host);
  /* Calls task(user, i, worker) once for each i in [0, n), in any order, and returns when all are
   * done. `worker` is unique among calls that run at the same time within this parallel_for. A
   * nested call runs in the calling thread. [any] */
  void (*parallel_for)(const mri_host* host, uint64_t n,
                       void (*task)(void* user, uint64_t i, uint32_t worker), void* user);
} mri_host_threads_v1;
