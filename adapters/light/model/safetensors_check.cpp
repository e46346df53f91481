#include "adapters/light/model/safetensors_check.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "adapters/light/model/model_error.h"

namespace varve::light {
namespace {

constexpr uint64_t kMaxHeaderBytes = 16u << 20;
constexpr size_t kMaxTensors = 1 << 16;
constexpr size_t kMaxDims = 8;

uint64_t dtype_bytes(std::string_view dtype) {
  static constexpr std::pair<std::string_view, uint64_t> kTypes[] = {
      {"F64", 8}, {"F32", 4}, {"F16", 2},  {"BF16", 2},    {"I64", 8},
      {"I32", 4}, {"I16", 2}, {"I8", 1},   {"U64", 8},     {"U32", 4},
      {"U16", 2}, {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  for (const auto& [name, bytes] : kTypes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

// Accepts exactly {"__metadata__": {text: text}, "<tensor>": {"dtype": text, "shape": [n…],
// "data_offsets": [n, n]}}.
class HeaderParser : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderParser(const std::string& name) : name_(name) {}

  std::vector<SafeTensor> take() { return std::move(tensors_); }

  bool start_object(std::size_t) override {
    if (depth_ >= 2 || in_array_) unexpected("an object");
    if (depth_ == 1 && !in_metadata()) {
      tensors_.push_back({key_, {}, {}, 0, 0});
      range_.clear();
      fields_.clear();
    }
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (depth_ == 2 && !in_metadata()) finish_tensor();
    --depth_;
    return true;
  }
  bool key(std::string& text) override {
    if (depth_ == 1) {
      key_ = text;
      if (!names_.insert(text).second)
        refuse(name_, ": tensor '", text, "' appears twice in the header");
      if (names_.size() > kMaxTensors)
        refuse(name_, ": more than ", kMaxTensors, " tensors in the header");
    } else if (!in_metadata()) {
      field_ = text;
      if (!fields_.insert(text).second)
        refuse(name_, ": tensor '", key_, "' has two fields '", text, "'");
    }
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_array_ || (field_ != "shape" && field_ != "data_offsets"))
      unexpected("an array");
    in_array_ = true;
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    return true;
  }
  bool string(std::string& text) override {
    if (depth_ == 2 && in_metadata()) return true;
    if (depth_ != 2 || in_array_ || field_ != "dtype") unexpected("a string");
    tensors_.back().dtype = text;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_ || in_metadata()) unexpected("a number");
    auto& list = field_ == "shape" ? tensors_.back().shape : range_;
    if (list.size() >= kMaxDims)
      refuse(name_, ": tensor '", key_, "' has more than ", kMaxDims, " numbers in ", field_);
    list.push_back(value);
    return true;
  }
  bool number_integer(number_integer_t) override { unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { unexpected("a fraction"); }
  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a boolean"); }
  bool binary(binary_t&) override { unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    refuse(name_, ": the header is not valid JSON at byte ", position + 8);
  }

 private:
  bool in_metadata() const { return key_ == "__metadata__"; }

  [[noreturn]] void unexpected(const char* what) const {
    refuse(name_, ": the header holds ", what, " where the format has none",
           key_.empty() ? "" : " (entry '" + key_ + "')");
  }

  void finish_tensor() {
    SafeTensor& tensor = tensors_.back();
    const uint64_t unit = dtype_bytes(tensor.dtype);
    if (fields_.size() != 3 || !fields_.contains("shape") || range_.size() != 2) {
      refuse(name_, ": tensor '", key_, "' must have exactly dtype, shape and two data_offsets");
    }
    if (unit == 0)
      refuse(name_, ": tensor '", key_, "' has the unknown dtype '", tensor.dtype, "'");
    unsigned __int128 bytes = unit;
    for (const uint64_t dim : tensor.shape) {
      bytes *= dim;
      if (bytes > INT64_MAX)
        refuse(name_, ": the shape of tensor '", key_, "' needs more than 2^63 bytes");
    }
    if (range_[1] < range_[0] || range_[1] - range_[0] != static_cast<uint64_t>(bytes)) {
      refuse(name_, ": tensor '", key_, "' has data_offsets ", range_[0], " to ", range_[1],
             "; its shape and dtype need ", static_cast<uint64_t>(bytes), " bytes");
    }
    tensor.offset = range_[0];
    tensor.bytes = static_cast<uint64_t>(bytes);
  }

  const std::string& name_;
  std::vector<SafeTensor> tensors_;
  std::unordered_set<std::string> names_, fields_;
  std::string key_, field_;
  std::vector<uint64_t> range_;
  int depth_ = 0;
  bool in_array_ = false;
};

// The ranges must follow each other and fill the data section to the byte.
void place(std::vector<SafeTensor>& tensors, uint64_t data, uint64_t data_bytes,
           const std::string& name) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const SafeTensor& a, const SafeTensor& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  uint64_t expected = 0;
  for (SafeTensor& tensor : tensors) {
    if (tensor.offset != expected) {
      refuse(name, ": tensor '", tensor.name, "' starts at ", tensor.offset,
             " of the data; expected ", expected,
             tensor.offset < expected ? " (it overlaps its neighbour)" : " (there is a hole)");
    }
    if (tensor.bytes > data_bytes - expected) {
      refuse(name, ": tensor '", tensor.name, "' ends at ", tensor.offset + tensor.bytes,
             "; the data has ", data_bytes, " bytes (is the file truncated?)");
    }
    expected += tensor.bytes;
    tensor.offset += data;
  }
  if (expected != data_bytes) {
    refuse(name, ": ", data_bytes - expected, " bytes after the last tensor; expected none");
  }
}

}  // namespace

std::vector<SafeTensor> check_safetensors(const ByteSource& source, const std::string& name) {
  uint64_t header_bytes = 0;
  if (!source.read_at(0, std::as_writable_bytes(std::span(&header_bytes, 1)))) {
    refuse(name, ": ", source.size(), " bytes are too few for a safetensors file");
  }
  if (header_bytes > kMaxHeaderBytes || header_bytes > source.size() - 8 || header_bytes < 2) {
    refuse(name, ": the header says it is ", header_bytes, " bytes long; the file has ",
           source.size() - 8, " bytes after that number and at most ", kMaxHeaderBytes,
           " are allowed");
  }
  std::string header(header_bytes, '\0');
  if (!source.read_at(8, std::as_writable_bytes(std::span(header))))
    refuse(name, ": the header cannot be read");
  if (header[0] != '{')
    refuse(name, ": the header does not start with '{'; expected a safetensors file");
  HeaderParser parser(name);
  nlohmann::json::sax_parse(header, &parser);
  std::vector<SafeTensor> tensors = parser.take();
  place(tensors, 8 + header_bytes, source.size() - 8 - header_bytes, name);
  return tensors;
}

}  // namespace varve::light
