/* Leaves a thread running after close(). */
#include <pthread.h>
#include <unistd.h>

#include "mri/mri.h"
static void* idle(void* unused) {
  for (;;) sleep(1);
  return unused;
}
static mri_status begin(void* self, const mri_param* params, uint64_t n_params, mri_error* err) {
  pthread_t thread;
  (void)self, (void)params, (void)n_params, (void)err;
  return pthread_create(&thread, NULL, idle, NULL) == 0 ? MRI_OK : MRI_E_NOMEM;
}
#define ACTIVATE begin
#include "sound.h"
