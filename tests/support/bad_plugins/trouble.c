/* Does one bad thing in one place: TROUBLE is crash, hang, abort, exit, fork or thread, and one of
 * IN_CONSTRUCTOR, IN_OPEN, IN_CAPS and IN_CLOSE is defined. All else is sound. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "mri/mri.h"

static void do_crash(void) { __builtin_trap(); }
static void do_abort(void) { abort(); }
static void do_exit(void) { exit(0); } /* as if all were well */
static void do_hang(void) {
  for (;;) sleep(1);
}
static void do_fork(void) {
  if (fork() != 0) return;
  for (int fd = 0; fd < 512; ++fd) close(fd);
  do_hang();
}
static void* idle(void* unused) {
  do_hang();
  return unused;
}
static void do_thread(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, idle, NULL) != 0) abort();
}

#define DO_(what) do_##what()
#define DO(what) DO_(what)

#ifdef IN_CONSTRUCTOR
__attribute__((constructor)) static void begin(void) { DO(TROUBLE); }
#endif
#ifdef IN_OPEN
static mri_status open_badly(const mri_host* host, uint32_t chosen, mri_plugin** out,
                             mri_error* err);
#define OPEN open_badly
#endif
#ifdef IN_CAPS
static mri_status tell_badly(void* self, mri_caps* out, mri_error* err);
#define QUERY_CAPS tell_badly
#endif
#ifdef IN_CLOSE
static void close_badly(void* self) {
  (void)self;
  DO(TROUBLE);
}
#define CLOSE close_badly
#endif
#include "sound.h"

#ifdef IN_OPEN
static mri_status open_badly(const mri_host* host, uint32_t chosen, mri_plugin** out,
                             mri_error* err) {
  (void)host, (void)chosen, (void)err;
  DO(TROUBLE);
  *out = &plugin;
  return MRI_OK;
}
#endif
#ifdef IN_CAPS
static mri_status tell_badly(void* self, mri_caps* out, mri_error* err) {
  (void)self, (void)err;
  if (IS_SHORT(out, mri_caps)) return MRI_E_ARG;
  DO(TROUBLE);
  FILLED(out, mri_caps);
  return MRI_OK;
}
#endif
