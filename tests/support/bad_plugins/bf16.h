// The quantizer of plugins/quantizer/bf16, without its entry.
#pragma once

#include "mri/sdk/quantizer.hpp"
#undef MRI_PLUGIN
#define MRI_PLUGIN(...) static_assert(true)
#include "plugins/quantizer/bf16/bf16.cpp"
#include "tests/support/bad_plugins/entry.h"
