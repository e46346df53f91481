/* Leaves a process behind. */
#include <unistd.h>

#include "mri/mri.h"
static mri_status forks(void* self, const mri_param* params, uint64_t n_params, mri_error* err) {
  (void)self, (void)params, (void)n_params, (void)err;
  if (fork() == 0) {
    for (int fd = 0; fd < 512; ++fd) close(fd);
    for (;;) sleep(1);
  }
  return MRI_OK;
}
#define ACTIVATE forks
#include "sound.h"
