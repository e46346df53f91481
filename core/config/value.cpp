#include "core/config/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace varve {
namespace {

constexpr size_t kQuotedBytesMax = 80;
constexpr double kInt64Bound = 9223372036854775808.0;  // 2^63

std::string number_text(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  return std::string(buffer, end);
}

std::string described(const Value& value) {
  static constexpr const char* kNames[] = {"boolean", "integer", "decimal number", "string",
                                           "array"};
  return absl::StrCat("the ", kNames[value.index()], " ", to_text(value));
}

absl::Status mismatch(const KeySpec& spec, const std::string& found) {
  return absl::InvalidArgumentError(
      absl::StrCat("found ", found, "; expected ", spec.expectation()));
}

bool is_choice(const KeySpec& spec, const std::string& text) {
  if (spec.choices.empty()) return true;
  const std::vector<std::string> choices = absl::StrSplit(spec.choices, '|');
  return std::find(choices.begin(), choices.end(), text) != choices.end();
}

bool fits(const KeySpec& spec, const Value& value) {
  if (value.index() != static_cast<size_t>(spec.type)) return false;
  // Written so that NaN does not fit.
  if (const auto* n = std::get_if<int64_t>(&value)) {
    return static_cast<double>(*n) >= spec.min && static_cast<double>(*n) <= spec.max;
  }
  if (const auto* x = std::get_if<double>(&value)) return *x >= spec.min && *x <= spec.max;
  if (const auto* text = std::get_if<std::string>(&value)) return is_choice(spec, *text);
  return true;
}

}  // namespace

absl::StatusOr<KeySpec> KeySpec::from_plugin(const mri_param_desc& desc) {
  if (desc.key == nullptr || *desc.key == '\0') {
    return absl::InvalidArgumentError("the plugin describes a parameter without a key");
  }
  const auto text = [](const char* s) { return std::string(s == nullptr ? "" : s); };
  KeySpec spec{desc.key, text(desc.help), text(desc.choices), ValueType::kString, {},
               desc.min, desc.max};
  const double number = desc.default_number;
  switch (desc.type) {
    case MRI_PARAM_BOOL:
      spec.type = ValueType::kBool;
      spec.default_value = number != 0;
      break;
    case MRI_PARAM_INT:
      if (!(number >= -kInt64Bound && number < kInt64Bound)) {
        return absl::InvalidArgumentError(
            absl::StrCat("the default of the plugin's parameter ", quoted(spec.key), " is ",
                         number_text(number), "; expected a 64-bit integer"));
      }
      spec.type = ValueType::kInt;
      spec.default_value = static_cast<int64_t>(number);
      break;
    case MRI_PARAM_FLOAT:
      spec.type = ValueType::kFloat;
      spec.default_value = number;
      break;
    case MRI_PARAM_STRING:
      spec.default_value = text(desc.default_string);
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat("the plugin's parameter ", quoted(spec.key),
                                                     " has type ", desc.type,
                                                     "; expected 1 (bool) to 4 (string)"));
  }
  return spec;
}

std::string KeySpec::expectation() const {
  switch (type) {
    case ValueType::kBool:
      return "true or false";
    case ValueType::kInt:
      return absl::StrCat("an integer from ", number_text(min), " to ", number_text(max));
    case ValueType::kFloat:
      return absl::StrCat("a number from ", number_text(min), " to ", number_text(max));
    case ValueType::kString:
      return choices.empty()
                 ? "a string"
                 : absl::StrCat("one of ", absl::StrJoin(absl::StrSplit(choices, '|'), ", "));
    case ValueType::kStrings:
      return "an array of strings";
  }
  return "";
}

std::string to_text(const Value& value) {
  if (const auto* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const auto* n = std::get_if<int64_t>(&value)) return absl::StrCat(*n);
  if (const auto* x = std::get_if<double>(&value)) return number_text(*x);
  if (const auto* text = std::get_if<std::string>(&value)) return quoted(*text);
  const auto& list = std::get<std::vector<std::string>>(value);
  return absl::StrCat(
      "[",
      absl::StrJoin(list, ", ", [](std::string* out, const std::string& s) { *out += quoted(s); }),
      "]");
}

std::string quoted(std::string_view text) {
  std::string shown =
      absl::Utf8SafeCEscape(absl::string_view(text.data(), std::min(text.size(), kQuotedBytesMax)));
  return absl::StrCat("\"", shown, text.size() > kQuotedBytesMax ? "…" : "", "\"");
}

absl::StatusOr<Value> checked_value(const KeySpec& spec, const Value& value) {
  Value wanted = value;
  if (spec.type == ValueType::kFloat) {
    if (const auto* n = std::get_if<int64_t>(&value)) wanted = static_cast<double>(*n);
  }
  if (!fits(spec, wanted)) return mismatch(spec, described(value));
  return wanted;
}

absl::StatusOr<Value> parsed_value(const KeySpec& spec, const std::string& text) {
  Value value = text;
  int64_t integer = 0;
  double number = 0;
  switch (spec.type) {
    case ValueType::kBool:
      if (text != "true" && text != "false") return mismatch(spec, quoted(text));
      value = text == "true";
      break;
    case ValueType::kInt:
      if (!absl::SimpleAtoi(text, &integer)) return mismatch(spec, quoted(text));
      value = integer;
      break;
    case ValueType::kFloat:
      if (!absl::SimpleAtod(text, &number)) return mismatch(spec, quoted(text));
      value = number;
      break;
    case ValueType::kString:
      break;
    case ValueType::kStrings:
      value = std::vector<std::string>(absl::StrSplit(text, ':', absl::SkipEmpty()));
      break;
  }
  if (!fits(spec, value)) return mismatch(spec, quoted(text));
  return value;
}

}  // namespace varve
