/* Built without the version script. */
#include "mri/entry.h"
MRI_EXPORT int helper_that_should_be_hidden(void);
int helper_that_should_be_hidden(void) { return 1; }
#include "sound.h"
