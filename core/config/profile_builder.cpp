#include "core/config/profile_builder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/config/nearest_name.h"
#include "toml++/toml.h"

namespace varve {
namespace {

std::vector<std::string> table_names() {
  std::vector<std::string> names;
  for (const TableSpec& table : profile_tables()) names.push_back(table.name);
  for (const TableSpec& family : named_tables()) names.push_back(family.name);
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
    const TableSpec* family = find_named_table(name);
    // A table that only [a.b] or dotted keys imply has no position of its own.
    const Place here = place(key.source().begin);
    if (table == nullptr && family == nullptr && node.is_table())
      return builder_.add_unknown_table(name, here);
    if (!node.is_table()) {
      return builder_.add_error(here, absl::StrCat("found key ", quoted(name),
                                                   " outside a table; expected it under a [table]",
                                                   suggestion(name, table_names())));
    }
    for (const auto& [inner, value] : *node.as_table()) {
      if (family != nullptr) {
        read_named(*family, std::string(inner.str()), inner, value);
      } else {
        read_key({*table, table->name}, std::string(inner.str()), inner, value);
      }
    }
  }

  void read_named(const TableSpec& family, const std::string& name, const toml::key& key,
                  const toml::node& node) {
    const Place here = place(key.source().begin);
    if (!node.is_table()) {
      return builder_.add_error(
          here, absl::StrCat("found key ", quoted(absl::StrCat(family.name, ".", name)),
                             "; expected it in a table with a name, [", family.name, ".NAME]"));
    }
    if (!builder_.open_named(family, name, here)) return;
    for (const auto& [inner, value] : *node.as_table()) {
      read_key({family, absl::StrCat(family.name, ".", name)}, std::string(inner.str()), inner,
               value);
    }
  }

  void read_key(const Target& table, const std::string& name, const toml::key& key,
                const toml::node& node) {
    const KeySpec* spec = find_key(table.spec.keys, name);
    const Place here = place(key.source().begin);
    if (spec == nullptr && !table.spec.has_plugin)
      return builder_.add_unknown_key(table, name, here);
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
  const Place place{Layer::kEnvironment, 0, 0, absl::StrCat("environment variable ", name)};
  const auto rest_after = [&](const TableSpec& table) -> std::string {
    const std::string prefix = environment_name(table.name, "");
    if (name.rfind(prefix, 0) != 0) return "";
    return absl::AsciiStrToLower(name.substr(prefix.size()));
  };
  for (const TableSpec& table : profile_tables()) {
    const std::string key = rest_after(table);
    if (!key.empty()) return add_text({table, table.name}, key, value, place);
  }
  for (const TableSpec& family : named_tables()) {
    const std::string rest = rest_after(family);
    if (!rest.empty()) return add_named_environment(family, rest, value, place);
  }
}

void ProfileBuilder::add_named_environment(const TableSpec& family, const std::string& rest,
                                           const std::string& value, const Place& place) {
  std::vector<std::pair<std::string, std::string>> fits;  // table, key
  const std::string prefix = family.name + ".";
  for (const auto& [table, settings] : tables_) {
    if (table.rfind(prefix, 0) != 0) continue;
    const std::string name = absl::StrReplaceAll(table.substr(prefix.size()), {{"-", "_"}});
    for (const KeySpec& key : family.keys) {
      if (absl::StrCat(name, "_", key.key) == rest) fits.emplace_back(table, key.key);
    }
  }
  if (fits.size() == 1) return add_text({family, fits[0].first}, fits[0].second, value, place);
  add_error(place,
            fits.empty()
                ? absl::StrCat("found no such key; expected the name of a table [", family.name,
                               ".NAME] of the profile file, _ and one of its "
                               "keys, in capitals")
                : absl::StrCat("found two meanings, [", fits[0].first, "] and [", fits[1].first,
                               "]; expected one; use --set instead"));
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
  if (const TableSpec* family = find_named_table(name))
    return add_named_override(*family, assignment.substr(dot + 1), place);
  if (table == nullptr) return add_unknown_table(name, place);
  add_text({*table, name}, assignment.substr(dot + 1, equals - dot - 1),
           assignment.substr(equals + 1), place);
}

void ProfileBuilder::add_named_override(const TableSpec& family, const std::string& rest,
                                        const Place& place) {
  const size_t equals = rest.find('=');
  const size_t dot = rest.find('.');
  if (dot == std::string::npos || dot > equals) {
    return add_error(place,
                     absl::StrCat("found no name; expected ", family.name,
                                  ".NAME.key=value, for example --set class.vip.priority=10"));
  }
  const std::string name = rest.substr(0, dot);
  if (!open_named(family, name, place)) return;
  add_text({family, absl::StrCat(family.name, ".", name)}, rest.substr(dot + 1, equals - dot - 1),
           rest.substr(equals + 1), place);
}

bool ProfileBuilder::open_named(const TableSpec& family, const std::string& name,
                                const Place& place) {
  if (!is_table_name(name)) {
    add_error(place, absl::StrCat("found the name ", quoted(name), " in [", family.name,
                                  ".NAME]; expected a to z, then at most 31 of a to z, 0 to 9, _ "
                                  "and -"));
    return false;
  }
  const std::string table = absl::StrCat(family.name, ".", name);
  if (tables_.find(table) != tables_.end()) return true;
  for (const KeySpec& key : family.keys)
    store(table, key.key, {key.default_value, false, Layer::kDefault, "default"});
  return true;
}

void ProfileBuilder::add_error(const Place& place, std::string_view text) {
  errors_.add(place.layer, place.line, place.column,
              absl::StrCat(place.where, ": ", std::string(text)));
}

void ProfileBuilder::add_value(const Target& table, const std::string& key, Value value,
                               const Place& place) {
  if (const KeySpec* spec = find_key(table.spec.keys, key)) {
    absl::StatusOr<Value> checked = checked_value(*spec, value);
    if (!checked.ok()) {
      return add_error(place, absl::StrCat(table.name, ".", key, ": ", checked.status().message()));
    }
    value = *std::move(checked);
  }
  store(table.name, key, {std::move(value), false, place.layer, place.where});
}

void ProfileBuilder::add_text(const Target& table, const std::string& key, const std::string& value,
                              const Place& place) {
  const KeySpec* spec = find_key(table.spec.keys, key);
  if (spec == nullptr) {
    if (!table.spec.has_plugin || key.empty()) return add_unknown_key(table, key, place);
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

void ProfileBuilder::add_unknown_key(const Target& table, const std::string& key,
                                     const Place& place) {
  std::vector<std::string> names;
  for (const KeySpec& spec : table.spec.keys) names.push_back(spec.key);
  add_error(place, absl::StrCat("found unknown key ", quoted(absl::StrCat(table.name, ".", key)),
                                "; expected a key of [", table.name, "]", suggestion(key, names)));
}

void ProfileBuilder::add_unknown_table(const std::string& table, const Place& place) {
  add_error(place, absl::StrCat("found unknown table ", quoted(table),
                                "; expected a table of configs/varve.toml",
                                suggestion(table, table_names())));
}

}  // namespace varve
