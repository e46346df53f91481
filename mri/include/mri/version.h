/* version.h: one number for the C interface and for the X-MRI-Version header. Major breaks; minor
 * appends. */
#pragma once

#include <stdint.h>

#define MRI_VERSION(major, minor) ((major)*65536u + (minor)) /* also usable in #if */
#define MRI_1_0 MRI_VERSION(1, 0)
#define MRI_1_1 MRI_VERSION(1, 1)

/* What these headers describe. A change of any layout changes it and abi/layout-*.tsv. */
#define MRI_HEADER_VERSION MRI_1_1

/* Compile with -DMRI_TARGET_VERSION=MRI_1_0 to see only what a 1.0 host knows. */
#ifndef MRI_TARGET_VERSION
#define MRI_TARGET_VERSION MRI_HEADER_VERSION
#endif
