/* A default outside its own limits. */
#include <stddef.h>

#include "mri/ext/params.h"
static const mri_param_desc depth[] = {
    {"depth", "how deep", NULL, NULL, MRI_PARAM_INT, 0, 9, 0, 4, 0}};
#define PARAMS depth
#define N_PARAMS 1
#include "sound.h"
