// A profile value and the description of the key that takes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "mri/ext/params.h"

namespace varve {

using Value = std::variant<bool, int64_t, double, std::string, std::vector<std::string>>;

// Same order as the alternatives of Value.
enum class ValueType { kBool, kInt, kFloat, kString, kStrings };

struct KeySpec {
  std::string key;
  std::string help;     // one line: what it does, unit, what it costs
  std::string choices;  // strings only: separated by '|'; empty: free text
  ValueType type = ValueType::kString;
  Value default_value;
  double min = 0, max = 0;  // inclusive; numbers only

  // `desc` comes from a plugin: a null text or an unknown type is an error, never a crash.
  static absl::StatusOr<KeySpec> from_plugin(const mri_param_desc& desc);
  // "an integer from 0 to 1024", "one of none, ram, file".
  std::string expectation() const;
};

// As a profile would write it: true, 12, 0.5, "text", ["a", "b"].
std::string to_text(const Value& value);
// For messages: `text` in quotes, escaped, shortened.
std::string quoted(std::string_view text);

// `value` as `spec` wants it (an integer is accepted for a decimal number), in range and among the
// choices. The error says "found …; expected …" without a place.
absl::StatusOr<Value> checked_value(const KeySpec& spec, const Value& value);
// The same for text from a command line or environment variable; lists are separated by ':'.
absl::StatusOr<Value> parsed_value(const KeySpec& spec, const std::string& text);

}  // namespace varve
