// The attention of plugins/attention/dense, without its entry.
#pragma once

#include "mri/sdk/attention.hpp"
#undef MRI_PLUGIN
#define MRI_PLUGIN(...) static_assert(true)
#include "plugins/attention/dense/dense.cpp"
#include "tests/support/bad_plugins/entry.h"
