// What a library shows to the outside, read from the file before it is loaded.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace varve {

// Names of the defined global and weak symbols of a 64-bit ELF shared library for this machine, in
// file order. The file is not trusted: every offset is checked; an error says what is wrong in it.
absl::StatusOr<std::vector<std::string>> elf_exports(std::string_view file);

}  // namespace varve
