#include "core/http/mri_frame.h"

#include <bit>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/http/request_json.h"

namespace varve::http {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are sent as they lie in memory");

constexpr char kBinaryType[] = "application/octet-stream";

struct FrameHead {
  char magic[4] = {'M', 'R', 'I', 'F'};
  uint32_t version = 1;
  uint32_t json_bytes = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(FrameHead) == 16);
constexpr size_t kJsonAlign = 8;

absl::StatusOr<MriFrame> read_binary(std::string_view body) {
  FrameHead head, expected;
  if (body.size() < sizeof(head)) {
    return invalid("", absl::StrCat("binary form: found ", body.size(),
                                    " bytes; expected a head of ", sizeof(head)));
  }
  std::memcpy(&head, body.data(), sizeof(head));
  body.remove_prefix(sizeof(head));
  if (std::memcmp(head.magic, expected.magic, sizeof(head.magic)) != 0 ||
      head.version != expected.version || head.reserved != 0) {
    return invalid("",
                   "binary form: found another head; expected \"MRIF\", version 1, and 0 in "
                   "bytes 12 to 15");
  }
  if (head.json_bytes > body.size() || head.json_bytes % kJsonAlign != 0) {
    return invalid("", absl::StrCat("binary form: found a JSON text of ", head.json_bytes,
                                    " bytes; expected a multiple of 8, at most ", body.size()));
  }
  absl::StatusOr<nlohmann::json> json = parse_body(body.substr(0, head.json_bytes));
  if (!json.ok()) return json.status();
  return MriFrame{*std::move(json), body.substr(head.json_bytes)};
}

absl::StatusOr<std::vector<int32_t>> read_tensor(const MriFrame& frame, const nlohmann::json& value,
                                                 std::string_view param) {
  const auto number = [](const nlohmann::json& object, const char* name) -> const nlohmann::json* {
    const auto found = object.find(name);
    return found != object.end() && found->is_number_unsigned() ? &*found : nullptr;
  };
  const auto shape = value.find("shape");
  const nlohmann::json* offset = number(value, "offset");
  if (value.value("dtype", nlohmann::json()) != "i32" || offset == nullptr ||
      shape == value.end() || !shape->is_array() || shape->size() != 1 ||
      !shape->front().is_number_unsigned()) {
    return invalid(param,
                   "expected a list of token numbers or {\"dtype\":\"i32\",\"shape\":[n],"
                   "\"offset\":bytes}");
  }
  const uint64_t at = offset->get<uint64_t>(), n = shape->front().get<uint64_t>();
  const uint64_t size = frame.data.size();
  if (at > size || at % sizeof(int32_t) != 0 || n > (size - at) / sizeof(int32_t)) {
    return invalid(param, absl::StrCat("found a tensor of ", n, " tokens at byte ", at,
                                       "; expected it aligned to 4 and inside the ", size,
                                       " bytes behind the JSON text"));
  }
  std::vector<int32_t> tokens(n);
  if (n > 0) std::memcpy(tokens.data(), frame.data.data() + at, n * sizeof(int32_t));
  return tokens;
}

}  // namespace

absl::StatusOr<MriFrame> read_mri_frame(const Request& request) {
  const std::string type(request.header("Content-Type").value_or(""));
  if (absl::StartsWithIgnoreCase(type, kBinaryType)) return read_binary(request.body);
  absl::StatusOr<nlohmann::json> json = parse_body(request.body);
  if (!json.ok()) return json.status();
  return MriFrame{*std::move(json), {}};
}

absl::StatusOr<std::vector<int32_t>> read_tokens(const MriFrame& frame, const nlohmann::json& value,
                                                 std::string_view param) {
  if (value.is_object()) return read_tensor(frame, value, param);
  if (!value.is_array()) return invalid(param, "expected a list of token numbers");
  std::vector<int32_t> tokens;
  tokens.reserve(value.size());
  for (const nlohmann::json& token : value) {
    // Which numbers the vocabulary has, the runtime knows, and says for each sequence of a step.
    if (!token.is_number_integer() || token < INT32_MIN || token > INT32_MAX) {
      return invalid(absl::StrCat(std::string(param), "[", tokens.size(), "]"),
                     "expected a token number, an integer of 32 bits");
    }
    tokens.push_back(token.get<int32_t>());
  }
  return tokens;
}

nlohmann::json MriAnswer::tensor(std::span<const float> values, uint64_t rows, uint64_t columns) {
  if (!is_binary_) {
    if (rows == 0) return std::vector<float>(values.begin(), values.end());
    nlohmann::json lists = nlohmann::json::array();
    for (uint64_t r = 0; r < rows; ++r) {
      const auto row = values.subspan(r * columns, columns);
      lists.push_back(std::vector<float>(row.begin(), row.end()));
    }
    return lists;
  }
  nlohmann::json shape = nlohmann::json::array();
  if (rows > 0) shape.push_back(rows);
  shape.push_back(columns);
  const size_t offset = data_.size();
  data_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  return {{"dtype", "f32"}, {"shape", std::move(shape)}, {"offset", offset}};
}

Response MriAnswer::response(nlohmann::json json) && {
  Response response;
  std::string text = dump(json);
  if (!is_binary_) {
    response.body = std::move(text);
    return response;
  }
  text.append((kJsonAlign - text.size() % kJsonAlign) % kJsonAlign, ' ');
  FrameHead head;
  head.json_bytes = static_cast<uint32_t>(text.size());
  response.content_type = kBinaryType;
  response.body.reserve(sizeof(head) + text.size() + data_.size());
  response.body.append(reinterpret_cast<const char*>(&head), sizeof(head));
  response.body += text;
  response.body += data_;
  return response;
}

}  // namespace varve::http
