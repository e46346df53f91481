#include "core/config/profile_builder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/config/nearest_name.h"
#include "toml++/toml.h"

namespace varve {
namespace {

std::vector<std::string> table_names() {
  std::vector<std::string> names;
  for (const TableSpec& table : profile_tables()) names.push_back(table.name);
  return names;
}

std::optional<Value> scalar_value(const toml::node& node) {
  if (const auto* b = node.as_boolean()) return Value(b->get());
  if (const auto* n = node.as_integer()) return Value(n->get());
  if (const auto* x = node.as_floating_point()) return Value(x->get());
  if (const auto* text = node.as_string()) return Value(text->get());
  return std::nullopt;
}

// No value for a table, a date, or an array that holds anything but strings.
std::optional<Value> value_of(const toml::node& node) {
  const toml::array* array = node.as_array();
  if (array == nullptr) return scalar_value(node);
  std::vector<std::string> list;
  for (const toml::node& element : *array) {
    const auto* text = element.as_string();
    if (text == nullptr) return std::nullopt;
    list.push_back(text->get());
  }
  return Value(std::move(list));
}

// The parser's messages quote the text as it is, line breaks included.
std::string one_line(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
  return line;
}

std::string type_name(const toml::node& node) {
  if (node.is_table()) return "a table";
  if (node.is_array()) return "an array that holds more than strings";
  return "a date or time";
}

}  // namespace

void ErrorList::add(Layer layer, uint32_t line, uint32_t column, std::string text) {
  errors_.emplace_back(layer, line, column, std::move(text));
}

absl::Status ErrorList::status() const {
  if (errors_.empty()) return absl::OkStatus();
  const auto by_place = [](const auto& a, const auto& b) {
    return std::tie(std::get<0>(a), std::get<1>(a), std::get<2>(a)) <
           std::tie(std::get<0>(b), std::get<1>(b), std::get<2>(b));
  };
  const std::string& first =
      std::get<3>(*std::min_element(errors_.begin(), errors_.end(), by_place));
  const size_t more = errors_.size() - 1;
  if (more == 0) return absl::InvalidArgumentError(first);
  return absl::InvalidArgumentError(
      absl::StrCat(first, " (and ", more, more == 1 ? " more error)" : " more errors)"));
}

std::string suggestion(std::string_view misspelt, const std::vector<std::string>& names) {
  const std::string nearest = nearest_name(misspelt, names);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", quoted(nearest), "?");
}

// Walks the two levels of a parsed file.
class ProfileBuilder::TomlReader {
 public:
  explicit TomlReader(ProfileBuilder& builder) : builder_(builder) {}

  void read(const toml::table& root) {
    for (const auto& [name, node] : root) read_table(std::string(name.str()), name, node);
  }

 private:
  Place place(const toml::source_position& position) const {
    return {Layer::kFile, position.line, position.column,
            absl::StrCat(builder_.path_, ":", position.line, ":", position.column)};
  }

  void read_table(const std::string& name, const toml::key& key, const toml::node& node) {
    const TableSpec* table = find_table(name);
    // A table that only [a.b] or dotted keys imply has no position of its own.
    const Place here = place(key.source().begin);
    if (table == nullptr && node.is_table()) return builder_.add_unknown_table(name, here);
    if (!node.is_table()) {
      return builder_.add_error(here, absl::StrCat("found key ", quoted(name),
                                                   " outside a table; expected it under a [table]",
                                                   suggestion(name, table_names())));
    }
    for (const auto& [inner, value] : *node.as_table())
      read_key(*table, std::string(inner.str()), inner, value);
  }

  void read_key(const TableSpec& table, const std::string& name, const toml::key& key,
                const toml::node& node) {
    const KeySpec* spec = find_key(table.keys, name);
    const Place here = place(key.source().begin);
    if (spec == nullptr && !table.has_plugin) return builder_.add_unknown_key(table, name, here);
    std::optional<Value> value = value_of(node);
    if (!value.has_value()) {
      return builder_.add_error(
          here, absl::StrCat(table.name, ".", name, ": found ", type_name(node), "; expected ",
                             spec == nullptr ? "a boolean, number, string or array of strings"
                                             : spec->expectation()));
    }
    builder_.add_value(table, name, *std::move(value), here);
  }

  ProfileBuilder& builder_;
};

void ProfileBuilder::add_defaults() {
  for (const TableSpec& table : profile_tables()) {
    for (const KeySpec& key : table.keys) {
      store(table.name, key.key, {key.default_value, false, Layer::kDefault, "default"});
    }
  }
}

void ProfileBuilder::add_file(std::string_view text) {
  try {
    TomlReader(*this).read(toml::parse(text, path_));
  } catch (const toml::parse_error& error) {
    const auto& at = error.source().begin;
    const Place place{Layer::kFile, at.line, at.column,
                      absl::StrCat(path_, ":", at.line, ":", at.column)};
    add_error(place,
              absl::StrCat("found a syntax error; expected TOML: ", one_line(error.description())));
  }
}

void ProfileBuilder::add_environment(const std::string& name, const std::string& value) {
  const TableSpec* table = nullptr;
  std::string prefix;
  for (const TableSpec& candidate : profile_tables()) {
    const std::string candidate_prefix = environment_name(candidate.name, "");
    if (name.rfind(candidate_prefix, 0) == 0 && name.size() > candidate_prefix.size()) {
      table = &candidate;
      prefix = candidate_prefix;
    }
  }
  if (table == nullptr) return;
  const std::string key = absl::AsciiStrToLower(name.substr(prefix.size()));
  add_text(*table, key, value,
           {Layer::kEnvironment, 0, 0, absl::StrCat("environment variable ", name)});
}

void ProfileBuilder::add_override(const std::string& assignment) {
  const Place place{Layer::kCommandLine, ++n_overrides_, 0,
                    absl::StrCat("--set ", quoted(assignment))};
  const size_t equals = assignment.find('=');
  const size_t dot = assignment.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot > equals) {
    return add_error(place,
                     "found no table.key=value; expected for example --set runtime.threads=2");
  }
  const std::string name = assignment.substr(0, dot);
  const TableSpec* table = find_table(name);
  if (table == nullptr) return add_unknown_table(name, place);
  add_text(*table, assignment.substr(dot + 1, equals - dot - 1), assignment.substr(equals + 1),
           place);
}

void ProfileBuilder::add_error(const Place& place, std::string_view text) {
  errors_.add(place.layer, place.line, place.column,
              absl::StrCat(place.where, ": ", std::string(text)));
}

void ProfileBuilder::add_value(const TableSpec& table, const std::string& key, Value value,
                               const Place& place) {
  if (const KeySpec* spec = find_key(table.keys, key)) {
    absl::StatusOr<Value> checked = checked_value(*spec, value);
    if (!checked.ok()) {
      return add_error(place, absl::StrCat(table.name, ".", key, ": ", checked.status().message()));
    }
    value = *std::move(checked);
  }
  store(table.name, key, {std::move(value), false, place.layer, place.where});
}

void ProfileBuilder::add_text(const TableSpec& table, const std::string& key,
                              const std::string& value, const Place& place) {
  const KeySpec* spec = find_key(table.keys, key);
  if (spec == nullptr) {
    if (!table.has_plugin || key.empty()) return add_unknown_key(table, key, place);
    return store(table.name, key, {value, true, place.layer, place.where});
  }
  absl::StatusOr<Value> parsed = parsed_value(*spec, value);
  if (!parsed.ok())
    return add_error(place, absl::StrCat(table.name, ".", key, ": ", parsed.status().message()));
  store(table.name, key, {*std::move(parsed), false, place.layer, place.where});
}

void ProfileBuilder::store(const std::string& table, const std::string& key, Setting setting) {
  Setting& slot = tables_[table][key];
  // Naming the same plugin again replaces nothing, so that the values written for it still have to
  // fit it.
  const bool same_plugin =
      key == "plugin" && setting.layer > Layer::kFile && slot.value == setting.value;
  if (!same_plugin) slot = std::move(setting);
}

void ProfileBuilder::add_unknown_key(const TableSpec& table, const std::string& key,
                                     const Place& place) {
  std::vector<std::string> names;
  for (const KeySpec& spec : table.keys) names.push_back(spec.key);
  add_error(place, absl::StrCat("found unknown key ", quoted(absl::StrCat(table.name, ".", key)),
                                "; expected a key of [", table.name, "]", suggestion(key, names)));
}

void ProfileBuilder::add_unknown_table(const std::string& table, const Place& place) {
  add_error(place, absl::StrCat("found unknown table ", quoted(table),
                                "; expected a table of configs/varve.toml",
                                suggestion(table, table_names())));
}

}  // namespace varve
