// The part of JSON Schema that openapi.json uses, compiled: the document that clients read is what
// requests are checked with.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "core/http/request_json.h"

namespace varve::http {

// Keywords: $ref, type, enum, minimum, maximum, minLength, maxLength (bytes), minItems, maxItems,
// maxProperties, properties, required, additionalProperties (a schema), items, anyOf; description
// stands in errors of an anyOf. Others are ignored.
class Schema {
 public:
  // `refs`: what "#/…" points into. Aborts on a document that cannot be used: it is our own.
  Schema(const nlohmann::json& source, const nlohmann::json& refs);
  ~Schema();

  // kInvalidArgument with the field's path as param: "top_p: found 1.5, expected a number from 0 to
  // 1". Members that are null are removed: null is absent. Whole floats become integers where an
  // integer is expected. `unknown` gets the paths of members that no schema names (at most 16).
  absl::Status check(Json& value, std::vector<std::string>* unknown) const;

 private:
  struct Path;
  struct Property;
  absl::Status check(Json& value, const Path* path, std::vector<std::string>* unknown) const;
  absl::Status check_number(Json& value, const Path* path) const;
  absl::Status check_object(Json& value, const Path* path, std::vector<std::string>* unknown) const;
  absl::Status check_any(Json& value, const Path* path, std::vector<std::string>* unknown) const;
  absl::Status check_size(size_t size, const char* what, const Path* path) const;
  bool takes(const Json& value) const;
  std::string expected() const;

  std::string type_, description_;
  long double min_, max_;
  size_t size_min_ = 0, size_max_;
  std::vector<std::string> choices_;  // enum of texts
  std::vector<Property> properties_;  // sorted by name
  std::unique_ptr<Schema> items_, others_;
  std::vector<Schema> any_of_;

 public:
  Schema(Schema&&) noexcept;
};

}  // namespace varve::http
