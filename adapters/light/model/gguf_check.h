#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "adapters/light/model/file.h"

namespace varve::light {

// Value types as the file numbers them.
enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

// An array is known by its element type and count; its elements are walked and checked, not kept.
struct GgufArray {
  GgufType element;
  uint64_t count;
};

// One metadata value; integers of any width and sign that fit are held as int64_t or uint64_t.
struct GgufValue {
  GgufType type;
  std::variant<uint64_t, int64_t, double, bool, std::string, GgufArray> value;
  uint64_t offset;  // of the value in the file, for messages
};

struct GgufTensor {
  std::string name;
  uint32_t type;                 // a ggml_type that ggml knows
  std::array<uint64_t, 4> dims;  // dims[0] is the row length; absent dimensions are 1
  uint64_t offset;               // of the first byte in the file
  uint64_t bytes;                // offset + bytes lies inside the file
};

// A GGUF file whose header has been proved consistent.
struct GgufFile {
  uint32_t version = 0;
  uint64_t alignment = 32;
  std::map<std::string, GgufValue, std::less<>> values;
  std::vector<GgufTensor> tensors;
};

// Reads and proves the header of a GGUF file before libllama or ggml see it: magic, version, counts
// against the bytes that are left, string lengths, value and element types, alignment, tensor
// names, shapes, types, extents, order; the tokenizer's arrays by element type and count. Work and
// memory are bounded by the file's size, never by a number in it. Throws ModelError: "<name>: …"
// with the byte offset, key or tensor at fault.
GgufFile check_gguf(const ByteSource& source, const std::string& name);

// The same for a path.
GgufFile check_gguf(const std::string& path);

}  // namespace varve::light
