#include "adapters/light/model/gguf_check.h"

#include <ggml.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "adapters/light/model/model_error.h"

namespace varve::light {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place as little-endian");

constexpr uint64_t kMaxTensors = 1 << 16;
constexpr uint64_t kMaxValues = 1 << 16;
constexpr uint64_t kMaxKeyBytes = 1 << 16;  // the format's own limit
constexpr uint64_t kMaxStringBytes =
    16u << 20;  // a chat template is the longest string of an honest file
constexpr uint64_t kMaxArrayStrings = 1u << 24;
constexpr uint64_t kMaxAlignment = 64 * 1024;
constexpr uint64_t kMinValueBytes = 8 + 1 + 4 + 1;  // key length, key, type, smallest value
constexpr uint64_t kMinTensorBytes =
    8 + 1 + 4 + 8 + 4 + 8;  // name length, name, n_dims, dim, type, offset

constexpr std::array<std::string_view, 13> kTypeNames = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
constexpr std::array<uint64_t, 13> kTypeBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

std::string_view type_name(GgufType type) { return kTypeNames[static_cast<uint32_t>(type)]; }

// A forward reader with a small buffer; every read is checked against the bytes that are left.
class Reader {
 public:
  Reader(const ByteSource& source, const std::string& name) : source_(source), name_(name) {}

  uint64_t offset() const { return offset_; }
  uint64_t left() const { return source_.size() - offset_; }

  template <typename... Parts>
  [[noreturn]] void refuse_at(uint64_t offset, const Parts&... parts) const {
    refuse(name_, ": at byte ", offset, ": ", parts...);
  }

  template <typename T>
  T number(std::string_view what) {
    T value;
    bytes(std::as_writable_bytes(std::span(&value, 1)), what);
    return value;
  }

  std::string text(std::string_view what, uint64_t limit) {
    const uint64_t start = offset_;
    const auto length = number<uint64_t>(what);
    if (length > left() || length > limit) {
      refuse_at(start, what, " says it is ", length, " bytes long; ", left(),
                " bytes are left and at most ", limit, " are allowed");
    }
    std::string value(length, '\0');
    bytes(std::as_writable_bytes(std::span(value)), what);
    return value;
  }

  void skip(uint64_t count, std::string_view what) {
    if (count > left()) refuse_at(offset_, what, " needs ", count, " bytes; ", left(), " are left");
    offset_ += count;
  }

 private:
  void bytes(std::span<std::byte> out, std::string_view what) {
    if (out.size() > left()) {
      refuse_at(offset_, "the file ends inside ", what, ": ", out.size(), " bytes expected, ",
                left(), " left");
    }
    size_t done = 0;
    while (done < out.size()) {
      if (offset_ < buffer_start_ || offset_ >= buffer_start_ + buffer_.size()) refill();
      const uint64_t at = offset_ - buffer_start_;
      const size_t n = std::min<uint64_t>(out.size() - done, buffer_.size() - at);
      std::memcpy(out.data() + done, buffer_.data() + at, n);
      done += n;
      offset_ += n;
    }
  }

  void refill() {
    buffer_.resize(std::min<uint64_t>(left(), 64 * 1024));
    buffer_start_ = offset_;
    if (!source_.read_at(offset_, buffer_))
      refuse_at(offset_, "read failed (was the file changed meanwhile?)");
  }

  const ByteSource& source_;
  const std::string& name_;
  uint64_t offset_ = 0;
  uint64_t buffer_start_ = 0;
  std::vector<std::byte> buffer_;
};

GgufType value_type(Reader& in, std::string_view key, std::string_view what) {
  const uint64_t at = in.offset();
  const auto number = in.number<uint32_t>(what);
  if (number >= kTypeNames.size()) {
    in.refuse_at(at, what, " of key '", key, "' is ", number, "; expected 0 to ",
                 kTypeNames.size() - 1);
  }
  return static_cast<GgufType>(number);
}

// Two equal tokens would make libllama abort, so they are looked for here, by a 64-bit hash of
// each.
void walk_strings(Reader& in, const std::string& key, uint64_t count) {
  const bool distinct = key == "tokenizer.ggml.tokens";
  std::unordered_set<size_t> seen;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = in.offset();
    const std::string word = in.text(key, kMaxKeyBytes);
    if (!distinct) continue;
    if (word.empty()) in.refuse_at(at, "token ", i, " is empty");
    if (!seen.insert(std::hash<std::string>{}(word)).second) {
      in.refuse_at(at, "token ", i, " ('", word,
                   "') repeats an earlier token; every token must be different");
    }
  }
}

GgufArray read_array(Reader& in, const std::string& key) {
  const GgufType element = value_type(in, key, "element type");
  if (element == GgufType::kArray)
    in.refuse_at(in.offset(), "key '", key, "' is an array of arrays; not allowed");
  const uint64_t at = in.offset();
  const auto count = in.number<uint64_t>("array count");
  const bool strings = element == GgufType::kString;
  const uint64_t least = strings ? 8 : kTypeBytes[static_cast<uint32_t>(element)];
  if (count > in.left() / least || (strings && count > kMaxArrayStrings)) {
    in.refuse_at(at, "array '", key, "' says it has ", count, " elements of type ",
                 type_name(element), "; ", in.left(), " bytes are left");
  }
  if (strings) {
    walk_strings(in, key, count);
  } else {
    in.skip(count * least, key);
  }
  return {element, count};
}

GgufValue read_value(Reader& in, const std::string& key) {
  GgufValue out{value_type(in, key, "value type"), uint64_t{0}, in.offset()};
  switch (out.type) {
    case GgufType::kU8:
      out.value = uint64_t{in.number<uint8_t>(key)};
      break;
    case GgufType::kU16:
      out.value = uint64_t{in.number<uint16_t>(key)};
      break;
    case GgufType::kU32:
      out.value = uint64_t{in.number<uint32_t>(key)};
      break;
    case GgufType::kU64:
      out.value = in.number<uint64_t>(key);
      break;
    case GgufType::kI8:
      out.value = int64_t{in.number<int8_t>(key)};
      break;
    case GgufType::kI16:
      out.value = int64_t{in.number<int16_t>(key)};
      break;
    case GgufType::kI32:
      out.value = int64_t{in.number<int32_t>(key)};
      break;
    case GgufType::kI64:
      out.value = in.number<int64_t>(key);
      break;
    case GgufType::kF32:
      out.value = double{in.number<float>(key)};
      break;
    case GgufType::kF64:
      out.value = in.number<double>(key);
      break;
    case GgufType::kBool:
      out.value = in.number<uint8_t>(key) != 0;
      break;
    case GgufType::kString:
      out.value = in.text(key, kMaxStringBytes);
      break;
    case GgufType::kArray:
      out.value = read_array(in, key);
      break;
  }
  return out;
}

void read_values(Reader& in, uint64_t count, GgufFile& file) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = in.offset();
    std::string key = in.text("a metadata key", kMaxKeyBytes);
    if (key.empty()) in.refuse_at(at, "metadata key ", i, " is empty");
    if (file.values.contains(key)) in.refuse_at(at, "key '", key, "' appears twice");
    GgufValue value = read_value(in, key);
    file.values.emplace(std::move(key), std::move(value));
  }
}

void read_alignment(const Reader& in, GgufFile& file) {
  const auto found = file.values.find("general.alignment");
  if (found == file.values.end()) return;
  const GgufValue& value = found->second;
  if (value.type != GgufType::kU32) {
    in.refuse_at(value.offset, "general.alignment has type ", type_name(value.type),
                 "; expected u32");
  }
  file.alignment = std::get<uint64_t>(value.value);
  if (!std::has_single_bit(file.alignment) || file.alignment > kMaxAlignment) {
    in.refuse_at(value.offset, "general.alignment is ", file.alignment,
                 "; expected a power of two up to ", kMaxAlignment);
  }
}

void read_shape(Reader& in, GgufTensor& tensor) {
  const uint64_t at = in.offset();
  const auto n_dims = in.number<uint32_t>("the number of dimensions");
  if (n_dims < 1 || n_dims > tensor.dims.size()) {
    in.refuse_at(at, "tensor '", tensor.name, "' has ", n_dims, " dimensions; expected 1 to 4");
  }
  tensor.dims.fill(1);
  unsigned __int128 elements = 1;
  for (uint32_t d = 0; d < n_dims; ++d) {
    tensor.dims[d] = in.number<uint64_t>("a tensor dimension");
    elements *= tensor.dims[d];
    if (tensor.dims[d] == 0 || elements > INT64_MAX) {
      in.refuse_at(at, "tensor '", tensor.name, "': dimension ", d, " is ", tensor.dims[d],
                   "; the product must be 1 to 2^63 - 1");
    }
  }
}

void read_type(Reader& in, GgufTensor& tensor) {
  const uint64_t at = in.offset();
  tensor.type = in.number<uint32_t>("a tensor type");
  const bool in_range = tensor.type < GGML_TYPE_COUNT;
  const auto* traits =
      in_range ? ggml_get_type_traits(static_cast<ggml_type>(tensor.type)) : nullptr;
  if (traits == nullptr || traits->type_size == 0 || traits->blck_size <= 0) {
    in.refuse_at(at, "tensor '", tensor.name, "' has type ", tensor.type,
                 ", which ggml does not know");
  }
  const auto block = static_cast<uint64_t>(traits->blck_size);
  if (tensor.dims[0] % block != 0) {
    in.refuse_at(at, "tensor '", tensor.name, "' has rows of ", tensor.dims[0], " elements; ",
                 traits->type_name, " needs a multiple of ", block);
  }
  unsigned __int128 bytes = tensor.dims[0] / block;
  bytes *= traits->type_size;
  for (int d = 1; d < 4; ++d) bytes *= tensor.dims[d];  // below 2^63 elements times 2^10 bytes
  if (bytes > INT64_MAX - kMaxAlignment) {
    in.refuse_at(at, "tensor '", tensor.name, "' would need more than 2^63 bytes");
  }
  tensor.bytes = static_cast<uint64_t>(bytes);
}

void read_tensors(Reader& in, uint64_t count, GgufFile& file) {
  std::unordered_set<std::string> names;
  for (uint64_t i = 0; i < count; ++i) {
    GgufTensor tensor;
    const uint64_t at = in.offset();
    tensor.name = in.text("a tensor name", GGML_MAX_NAME - 1);
    if (tensor.name.empty()) in.refuse_at(at, "tensor ", i, " has no name");
    if (!names.insert(tensor.name).second)
      in.refuse_at(at, "tensor '", tensor.name, "' appears twice");
    read_shape(in, tensor);
    read_type(in, tensor);
    const uint64_t offset_at = in.offset();
    tensor.offset = in.number<uint64_t>("a tensor offset");
    if (tensor.offset % file.alignment != 0) {
      in.refuse_at(offset_at, "tensor '", tensor.name, "' has offset ", tensor.offset,
                   "; expected a multiple of ", file.alignment);
    }
    file.tensors.push_back(std::move(tensor));
  }
}

uint64_t pad(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

// Turns offsets in the data section into offsets in the file. ggml wants the tensors back to back
// in file order, which also rules out overlaps and holes.
void place_tensors(const Reader& in, uint64_t file_bytes, const std::string& name, GgufFile& file) {
  if (file.tensors.empty()) return;
  const uint64_t data = pad(in.offset(), file.alignment);
  uint64_t expected = 0;
  std::string_view previous = "the data section";
  for (GgufTensor& tensor : file.tensors) {
    if (data > file_bytes || tensor.offset > file_bytes - data ||
        tensor.bytes > file_bytes - data - tensor.offset) {
      refuse(name, ": tensor '", tensor.name, "' needs ", tensor.bytes, " bytes at ", tensor.offset,
             " of the data section, which starts at byte ", data, "; the file has ", file_bytes,
             " bytes (is it truncated?)");
    }
    if (tensor.offset < expected) {
      refuse(name, ": tensor '", tensor.name, "' at ", tensor.offset,
             " of the data section overlaps ", previous, "; expected ", expected);
    }
    if (tensor.offset > expected) {
      refuse(name, ": tensor '", tensor.name, "' at ", tensor.offset,
             " of the data section leaves a hole after ", previous, "; expected ", expected);
    }
    expected = pad(tensor.offset + tensor.bytes, file.alignment);
    previous = tensor.name;
    tensor.offset += data;
  }
}

struct ArrayRule {
  const char* key;
  GgufType element;
  bool per_token;
};
constexpr ArrayRule kTokenizerArrays[] = {{"tokenizer.ggml.tokens", GgufType::kString, true},
                                          {"tokenizer.ggml.scores", GgufType::kF32, true},
                                          {"tokenizer.ggml.token_type", GgufType::kI32, true},
                                          {"tokenizer.ggml.merges", GgufType::kString, false}};

void check_tokenizer(const Reader& in, const GgufFile& file) {
  uint64_t tokens = 0;
  for (const ArrayRule& rule : kTokenizerArrays) {
    const auto found = file.values.find(rule.key);
    if (found == file.values.end()) continue;
    const auto* array = std::get_if<GgufArray>(&found->second.value);
    if (array == nullptr || array->element != rule.element) {
      in.refuse_at(found->second.offset, rule.key, " is ",
                   array != nullptr ? "an array of " : "a single ",
                   type_name(array != nullptr ? array->element : found->second.type),
                   "; expected an array of ", type_name(rule.element));
    }
    if (rule.key == kTokenizerArrays[0].key) tokens = array->count;
    if (rule.per_token && array->count != tokens) {
      in.refuse_at(found->second.offset, rule.key, " has ", array->count,
                   " elements; expected one for each of the ", tokens, " tokens");
    }
  }
  for (const auto& [key, value] : file.values) {
    if (!key.starts_with("tokenizer.ggml.") || !key.ends_with("_token_id")) continue;
    const auto* id = std::get_if<uint64_t>(&value.value);
    if (id == nullptr || *id >= tokens) {
      in.refuse_at(value.offset, key, " must be an unsigned number below the ", tokens,
                   " tokens of the vocabulary");
    }
  }
}

}  // namespace

GgufFile check_gguf(const ByteSource& source, const std::string& name) {
  Reader in(source, name);
  GgufFile file;
  if (source.size() < 24)
    refuse(name, ": ", source.size(), " bytes are too few for a GGUF header of 24");
  const auto magic = in.number<uint32_t>("the magic");
  if (magic != 0x46554747)
    in.refuse_at(0, "the file does not start with 'GGUF'; expected a GGUF model file");
  file.version = in.number<uint32_t>("the version");
  if (file.version < 2 || file.version > 3) {
    in.refuse_at(4, "GGUF version is ", file.version, "; expected 2 or 3",
                 (file.version & 0xffff) == 0 ? " (is it a big-endian file?)" : "");
  }
  const auto n_tensors = in.number<uint64_t>("the tensor count");
  const auto n_values = in.number<uint64_t>("the metadata count");
  if (n_tensors > std::min(kMaxTensors, in.left() / kMinTensorBytes)) {
    in.refuse_at(8, "the header announces ", n_tensors, " tensors; ", in.left(),
                 " bytes are left and at most ", kMaxTensors, " are allowed");
  }
  if (n_values > std::min(kMaxValues, in.left() / kMinValueBytes)) {
    in.refuse_at(16, "the header announces ", n_values, " metadata values; ", in.left(),
                 " bytes are left and at most ", kMaxValues, " are allowed");
  }
  read_values(in, n_values, file);
  read_alignment(in, file);
  check_tokenizer(in, file);
  read_tensors(in, n_tensors, file);
  place_tensors(in, source.size(), name, file);
  return file;
}

GgufFile check_gguf(const std::string& path) {
  const File file(path);
  return check_gguf(file, path);
}

}  // namespace varve::light
