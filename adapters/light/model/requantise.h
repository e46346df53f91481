#pragma once

#include <string>

namespace varve::light {

// Writes the GGUF file `out` with every weight of the GGUF file `in` expanded to f32, by libllama's
// quantise call: the reference that parity is measured against. The input is checked first. Nothing
// is done when `out` is already the copy of this very input (size and modification time, kept
// beside it in `out`.source). The file appears whole or not at all. Takes about 4 bytes per weight
// on disk. Throws ModelError.
void write_f32_copy(const std::string& in, const std::string& out);

}  // namespace varve::light
