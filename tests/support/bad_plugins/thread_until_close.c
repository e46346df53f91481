/* Has a thread that drain() does not stop, only close(). */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "mri/mri.h"
static pthread_t thread;
static atomic_int is_over;
static void* idle(void* unused) {
  while (!atomic_load(&is_over)) usleep(1000);
  return unused;
}
static mri_status begin(void* self, const mri_param* params, uint64_t n_params, mri_error* err) {
  (void)self, (void)params, (void)n_params, (void)err;
  atomic_store(&is_over, 0);
  return pthread_create(&thread, NULL, idle, NULL) == 0 ? MRI_OK : MRI_E_NOMEM;
}
static void end(void* self) {
  (void)self;
  atomic_store(&is_over, 1);
  pthread_join(thread, NULL);
}
#define ACTIVATE begin
#define CLOSE end
#include "sound.h"
