#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "adapters/light/model/file.h"

namespace varve::light {

struct SafeTensor {
  std::string name;
  std::string dtype;  // one that the format defines
  std::vector<uint64_t> shape;
  uint64_t offset = 0;  // of the first byte in the file
  uint64_t bytes = 0;   // shape times dtype; offset + bytes lies inside the file
};

// Reads and proves the header of a safetensors file: length (at most 16 MiB, where the format
// allows 100 MB), JSON of the one shape the format has (no deeper nesting, no duplicate names or
// fields, at most 65536 tensors), dtype times shape equal to the byte range, ranges that cover the
// data exactly: no hole, overlap or trailing byte. Throws ModelError:
// "<name>: …" with the tensor at fault.
std::vector<SafeTensor> check_safetensors(const ByteSource& source, const std::string& name);

}  // namespace varve::light
