// The values of a plugin's parameters, with the defaults of its own table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "mri/ext/params.h"
#include "mri/sdk/error.hpp"

namespace mri {

// Lines of a parameter table: std::array or C array of these, constexpr.
constexpr mri_param_desc param_bool(const char* key, bool value, const char* help) {
  return {key, help, nullptr, nullptr, MRI_PARAM_BOOL, 0, value ? 1.0 : 0.0, 0, 1, 0};
}
constexpr mri_param_desc param_int(const char* key, int64_t value, int64_t min, int64_t max,
                                   const char* help) {
  return {key,
          help,
          nullptr,
          nullptr,
          MRI_PARAM_INT,
          0,
          static_cast<double>(value),
          static_cast<double>(min),
          static_cast<double>(max),
          0};
}
constexpr mri_param_desc param_float(const char* key, double value, double min, double max,
                                     const char* help) {
  return {key, help, nullptr, nullptr, MRI_PARAM_FLOAT, 0, value, min, max, 0};
}
// `choices`: "a|b|c", or null for free text.
constexpr mri_param_desc param_string(const char* key, const char* value, const char* choices,
                                      const char* help) {
  return {key, help, choices, value, MRI_PARAM_STRING, 0, 0, 0, 0, 0};
}

// Lives only as long as the constructor of the plugin's class that gets it: copy what is needed.
class Params {
 public:
  Params(std::span<const mri_param_desc> known, const mri_param* values, uint64_t n)
      : known_(known), values_(values, n) {
    if (n > 0 && values == nullptr) throw Error(MRI_E_ARG, "null parameter list");
    for (const mri_param& value : values_) check(value);
  }

  // T is bool, an integer, float, double or std::string. Throws when the plugin's table has no such
  // key of that type.
  template <class T>
  T get(std::string_view key) const {
    constexpr uint32_t type = std::is_same_v<T, bool>       ? MRI_PARAM_BOOL
                              : std::is_integral_v<T>       ? MRI_PARAM_INT
                              : std::is_floating_point_v<T> ? MRI_PARAM_FLOAT
                                                            : MRI_PARAM_STRING;
    const mri_param_desc* desc = find(key);
    if (desc == nullptr || desc->type != type) {
      throw Error(MRI_E_INTERNAL,
                  "no parameter '" + std::string(key) + "' of that type in the plugin's table");
    }
    const mri_param* value = nullptr;
    for (const mri_param& v : values_) {
      if (key == v.key) value = &v;
    }
    if constexpr (type == MRI_PARAM_STRING) {
      const char* text = value != nullptr ? value->string_value : desc->default_string;
      return T(text != nullptr ? text : "");
    } else if constexpr (type == MRI_PARAM_FLOAT) {
      return static_cast<T>(value != nullptr ? value->float_value : desc->default_number);
    } else {
      return static_cast<T>(value != nullptr ? value->int_value
                                             : static_cast<int64_t>(desc->default_number));
    }
  }

 private:
  const mri_param_desc* find(std::string_view key) const {
    for (const mri_param_desc& desc : known_) {
      if (key == desc.key) return &desc;
    }
    return nullptr;
  }

  void check(const mri_param& value) const {
    const mri_param_desc* desc = value.key != nullptr ? find(value.key) : nullptr;
    if (desc == nullptr || desc->type != value.type) {
      throw Error(MRI_E_ARG, std::string("unknown parameter or wrong type: ") +
                                 (value.key != nullptr ? value.key : "(null)"));
    }
    const bool is_number = value.type == MRI_PARAM_INT || value.type == MRI_PARAM_FLOAT;
    const double number =
        value.type == MRI_PARAM_FLOAT ? value.float_value : static_cast<double>(value.int_value);
    if (is_number && !(number >= desc->min && number <= desc->max)) {
      throw Error(MRI_E_ARG, std::string("parameter out of range: ") + value.key);
    }
  }

  std::span<const mri_param_desc> known_;
  std::span<const mri_param> values_;
};

}  // namespace mri
