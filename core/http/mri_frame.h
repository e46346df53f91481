// The binary form of MRI over HTTP (application/octet-stream): JSON with tensors beside it.
//
//   0   4  magic "MRIF"
//   4   4  u32 version, 1
//   8   4  u32 bytes of the JSON text, a multiple of 8: spaces at its end
//   12  4  u32 0
//   16  …  the JSON text; a tensor is {"dtype":"i32"|"f32","shape":[…],"offset":N}
//   …   …  the tensors, raw, C order; `offset` counts from the first byte after the JSON text and
//          is a multiple of 4
//
// All numbers are little-endian.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/http/http.h"

namespace varve::http {

struct MriFrame {
  nlohmann::json json;    // an object
  std::string_view data;  // what stands behind it; empty in the JSON form
};

// By the request's content type. `data` points into its body.
absl::StatusOr<MriFrame> read_mri_frame(const Request& request);

// A list of numbers or, in the binary form, a tensor of dtype i32 and one dimension.
absl::StatusOr<std::vector<int32_t>> read_tokens(const MriFrame& frame, const nlohmann::json& value,
                                                 std::string_view param);

// Collects what an answer says, in the form the client accepts.
class MriAnswer {
 public:
  explicit MriAnswer(bool is_binary) : is_binary_(is_binary) {}

  bool is_binary() const { return is_binary_; }
  // The value that stands for rows x columns numbers: nested lists (one list when `rows` is 0), or
  // a tensor.
  nlohmann::json tensor(std::span<const float> values, uint64_t rows, uint64_t columns);
  Response response(nlohmann::json json) &&;

 private:
  const bool is_binary_;
  std::string data_;
};

}  // namespace varve::http
