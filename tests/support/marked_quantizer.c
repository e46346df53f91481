/* A sound quantizer that leaves a mark when its code runs first: its constructor appends MARK to
 * the file that the environment variable VARVE_TEST_MARKS names. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/bad_plugins/sound.h"

__attribute__((constructor)) static void leave_mark(void) {
  const char* path = getenv("VARVE_TEST_MARKS");
  FILE* file = path == NULL ? NULL : fopen(path, "a");
  if (file == NULL) return;
  fputs(MARK, file);
  fclose(file);
}
