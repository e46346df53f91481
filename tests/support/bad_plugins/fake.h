// The runtime of adapters/fake, without its entry.
#pragma once

#include "mri/sdk/runtime.hpp"
#undef MRI_PLUGIN
#define MRI_PLUGIN(...) static_assert(true)
#include "adapters/fake/fake.cpp"
#include "tests/support/bad_plugins/entry.h"
