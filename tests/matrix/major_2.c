/* A source of kept_1_0/ as one of MRI 2.0. */
#define _GNU_SOURCE /* as the sources do, but before any header */
#include "tests/matrix/major_2.h"

#include MATRIX_SOURCE
