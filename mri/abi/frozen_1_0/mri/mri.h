/* MRI 1.0 as it was, without comments: a plugin built with this must run on every host of major 1.
 * Never edited. The headers in include/ are the ones to read. */
#pragma once
#include "base.h"
#include "extensions.h"
#include "kinds.h"
