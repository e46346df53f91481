// What every plugin of a kind promises, as plain checks that return what is wrong.
#pragma once

#include <string>
#include <vector>

#include "core/plugin/stack.h"

namespace varve::test {

// Size rules of the calls that a stack's plugin of `kind` can answer without data: a caller that is
// newer (struct_size larger than today's) or is as old as 1.0 must be served, a shorter one
// refused, and nothing may be written past struct_size.
std::vector<std::string> size_findings(const Stack& stack, const std::string& kind);

}  // namespace varve::test
