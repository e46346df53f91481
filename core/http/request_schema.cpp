#include "core/http/request_schema.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/text.h"
#include "core/http/request_json.h"

namespace varve::http {

using nlohmann::json;

namespace {

constexpr size_t kShownBytesMax = 80;
constexpr size_t kUnknownMax = 16;

std::string shown(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return absl::StrCat("a list of ", value.size());
    case Json::value_t::string:
      return absl::StrCat("\"", clean_text(value.get_ref<const std::string&>(), kShownBytesMax),
                          "\"");
    default:
      return dump(value);
  }
}

// 64 bits of mantissa or more where it matters: int64 and uint64 compare exactly.
template <class Value>
long double number(const Value& value) {
  if (value.is_number_unsigned()) return static_cast<long double>(value.template get<uint64_t>());
  if (value.is_number_integer()) return static_cast<long double>(value.template get<int64_t>());
  return value.template get<double>();
}

std::string number_text(long double value) {
  if (value == std::floor(value) && value >= -0x1p63L && value < 0x1p63L)
    return absl::StrCat(static_cast<int64_t>(value));
  return absl::StrCat(static_cast<double>(value));
}

const json& resolve(const json& source, const json& refs) {
  const auto ref = source.find("$ref");
  return ref == source.end() ? source
                             : refs.at(json::json_pointer(ref->get<std::string>().substr(1)));
}

}  // namespace

struct Schema::Path {
  const Path* parent;
  std::string_view name;
  size_t index;

  static std::string text(const Path* path) {
    if (path == nullptr) return "";
    std::string start = text(path->parent);
    if (path->name.empty()) return absl::StrCat(start, "[", path->index, "]");
    return absl::StrCat(start, start.empty() ? "" : ".", clean_text(path->name, kShownBytesMax));
  }
};

struct Schema::Property {
  std::string name;
  Schema schema;
  bool is_required;
};

Schema::Schema(Schema&&) noexcept = default;
Schema::~Schema() = default;

Schema::Schema(const json& reference, const json& refs) {
  const json& source = resolve(reference, refs);
  type_ = source.value("type", "");
  description_ = source.value("description", "");
  const bool is_integer = type_ == "integer";
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto bound = [&](const char* name, int64_t whole, double real) {
    const auto found = source.find(name);
    if (found != source.end()) return number(*found);
    return is_integer ? static_cast<long double>(whole) : static_cast<long double>(real);
  };
  min_ = bound("minimum", std::numeric_limits<int64_t>::min(), -kInfinity);
  max_ = bound("maximum", std::numeric_limits<int64_t>::max(), kInfinity);
  const char* names[2] = {type_ == "string" ? "minLength" : "minItems",
                          type_ == "string"  ? "maxLength"
                          : type_ == "array" ? "maxItems"
                                             : "maxProperties"};
  size_min_ = source.value(names[0], size_t{0});
  size_max_ = source.value(names[1], std::numeric_limits<size_t>::max());
  if (source.contains("enum")) choices_ = source.at("enum").get<std::vector<std::string>>();
  if (source.contains("items")) items_ = std::make_unique<Schema>(source.at("items"), refs);
  if (source.contains("additionalProperties"))
    others_ = std::make_unique<Schema>(source.at("additionalProperties"), refs);
  for (const json& branch : source.value("anyOf", json::array()))
    any_of_.emplace_back(branch, refs);
  const json required = source.value("required", json::array());
  const json properties = source.value("properties", json::object());
  for (const auto& [name, schema] : properties.items()) {
    const bool is_required = std::find(required.begin(), required.end(), name) != required.end();
    properties_.push_back({name, Schema(schema, refs), is_required});
  }
}

absl::Status Schema::check(Json& value, std::vector<std::string>* unknown) const {
  return check(value, nullptr, unknown);
}

bool Schema::takes(const Json& value) const {
  if (type_.empty()) return true;
  if (type_ == "integer" || type_ == "number") return value.is_number();
  return type_ == value.type_name();
}

std::string Schema::expected() const {
  if (!any_of_.empty() && !description_.empty()) return description_;
  if (!choices_.empty()) return absl::StrCat("one of \"", absl::StrJoin(choices_, "\", \""), "\"");
  if (type_ == "string") return "a text";
  if (type_ == "array") return "a list";
  if (type_ == "object") return "an object";
  if (type_ == "boolean") return "true or false";
  const std::string kind = type_ == "integer" ? "a whole number" : "a number";
  if (!std::isfinite(min_)) return kind;
  return absl::StrCat(kind, " from ", number_text(min_), " to ", number_text(max_));
}

absl::Status Schema::check_number(Json& value, const Path* path) const {
  const long double x = number(value);
  // A float beyond this stands for several whole numbers.
  const bool is_exact = !value.is_number_float() || std::fabs(x) <= 0x1p53L;
  const bool is_whole = type_ != "integer" || (x == std::floor(x) && is_exact);
  if (!is_whole || x < min_ || x > max_) {
    return invalid(Path::text(path),
                   absl::StrCat("found ", shown(value), ", expected ", expected()));
  }
  if (type_ == "integer") value = static_cast<int64_t>(x);
  return absl::OkStatus();
}

absl::Status Schema::check_size(size_t size, const char* what, const Path* path) const {
  if (size >= size_min_ && size <= size_max_) return absl::OkStatus();
  const std::string most = size_max_ == std::numeric_limits<size_t>::max()
                               ? std::string()
                               : absl::StrCat(" and at most ", size_max_);
  return invalid(Path::text(path),
                 absl::StrCat("found ", size, " ", what, ", expected at least ", size_min_, most));
}

absl::Status Schema::check_object(Json& value, const Path* path,
                                  std::vector<std::string>* unknown) const {
  for (const Property& property : properties_) {
    const auto found = value.find(property.name);
    if (found != value.end() && found->is_null()) value.erase(found);
  }
  for (const auto& [name, member] : value.items()) {
    const Path at{path, name, 0};
    const auto known = std::lower_bound(
        properties_.begin(), properties_.end(), name,
        [](const Property& property, const std::string& key) { return property.name < key; });
    absl::Status status;
    if (known != properties_.end() && known->name == name) {
      status = known->schema.check(member, &at, unknown);
    } else if (others_ != nullptr) {
      status = others_->check(member, &at, unknown);
    } else if (!properties_.empty() && unknown != nullptr && unknown->size() < kUnknownMax) {
      unknown->push_back(Path::text(&at));
    }
    if (!status.ok()) return status;
  }
  for (const Property& property : properties_) {
    if (!property.is_required || value.contains(property.name)) continue;
    const Path at{path, property.name, 0};
    return invalid(Path::text(&at),
                   absl::StrCat("found none, expected ", property.schema.expected()));
  }
  return absl::OkStatus();
}

absl::Status Schema::check_any(Json& value, const Path* path,
                               std::vector<std::string>* unknown) const {
  absl::Status last;
  size_t n_taken = 0;
  for (const Schema& branch : any_of_) {
    if (!branch.takes(value)) continue;
    last = branch.check(value, path, unknown);
    if (last.ok()) return last;
    ++n_taken;
  }
  if (n_taken == 1) return last;
  return invalid(Path::text(path), absl::StrCat("found ", shown(value), ", expected ", expected()));
}

absl::Status Schema::check(Json& value, const Path* path, std::vector<std::string>* unknown) const {
  if (!any_of_.empty()) return check_any(value, path, unknown);
  if (!takes(value)) {
    return invalid(Path::text(path),
                   absl::StrCat("found ", shown(value), ", expected ", expected()));
  }
  if (type_ == "integer" || type_ == "number") return check_number(value, path);
  if (type_ == "string") {
    const std::string& text = value.get_ref<const std::string&>();
    if (!choices_.empty() && std::find(choices_.begin(), choices_.end(), text) == choices_.end()) {
      return invalid(Path::text(path),
                     absl::StrCat("found ", shown(value), ", expected ", expected()));
    }
    return check_size(text.size(), "bytes", path);
  }
  if (type_ == "object") {
    const absl::Status status = check_size(value.size(), "members", path);
    return status.ok() ? check_object(value, path, unknown) : status;
  }
  if (type_ != "array") return absl::OkStatus();
  absl::Status status = check_size(value.size(), "entries", path);
  for (size_t i = 0; status.ok() && items_ != nullptr && i < value.size(); ++i) {
    const Path at{path, "", i};
    status = items_->check(value[i], &at, unknown);
  }
  return status;
}

}  // namespace varve::http
