#include "core/config/profile.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/config/nearest_name.h"
#include "core/config/profile_builder.h"

namespace varve {
namespace {

constexpr size_t kProfileBytesMax = size_t{1} << 20;

absl::StatusOr<std::string> read_profile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": found no readable file (", std::strerror(errno), "); expected a TOML profile"));
  }
  std::string text(kProfileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": found no readable file (is it a folder?); expected a TOML profile"));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kProfileBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": found more than ", kProfileBytesMax,
                                                   " bytes; expected a TOML profile"));
  }
  return text;
}

bool names_file(std::string_view key) {
  const absl::string_view name(key.data(), key.size());
  return absl::EndsWith(name, "_path") || absl::EndsWith(name, "_dir");
}

// A plugin's own key comes from its own table, except for the facts of the model.
std::pair<std::string_view, std::string_view> home_of(std::string_view table,
                                                      std::string_view key) {
  if (table == "runtime" && key == "model_path") return {"model", "path"};
  if (table == "runtime" && key == "tokenizer_path") return {"model", "tokenizer_path"};
  if (table == "runtime" && key == "model_name") return {"model", "name"};
  return {table, key};
}

std::vector<std::string> names_of(const std::vector<KeySpec>& specs) {
  std::vector<std::string> names;
  for (const KeySpec& spec : specs) names.push_back(spec.key);
  return names;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> varve_environment() {
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    const size_t equals = line.find('=');
    if (line.rfind("VARVE_", 0) != 0 || equals == std::string_view::npos) continue;
    variables.emplace_back(line.substr(0, equals), line.substr(equals + 1));
  }
  std::sort(variables.begin(), variables.end());
  return variables;
}

absl::StatusOr<Profile> Profile::load(const ProfileSources& sources) {
  if (sources.path.empty()) return parse("", sources);
  const absl::StatusOr<std::string> text = read_profile(sources.path);
  if (!text.ok()) return text.status();
  return parse(*text, sources);
}

absl::StatusOr<Profile> Profile::parse(std::string_view text, const ProfileSources& sources) {
  ProfileBuilder builder(sources.path);
  builder.add_defaults();
  builder.add_file(text);
  for (const auto& [name, value] : sources.environment) builder.add_environment(name, value);
  for (const std::string& assignment : sources.overrides) builder.add_override(assignment);
  const absl::Status status = builder.status();
  if (!status.ok()) return status;

  Profile profile;
  profile.folder_ = sources.path.substr(0, sources.path.rfind('/') + 1);
  profile.tables_ = builder.take_tables();
  return profile;
}

const Setting* Profile::find(std::string_view table, std::string_view key) const {
  const auto settings = tables_.find(table);
  if (settings == tables_.end()) return nullptr;
  const auto setting = settings->second.find(key);
  return setting == settings->second.end() ? nullptr : &setting->second;
}

const SettingTable& Profile::table(std::string_view name) const {
  static const auto* none = new SettingTable();
  const auto settings = tables_.find(name);
  return settings == tables_.end() ? *none : settings->second;
}

std::vector<std::string> Profile::names(std::string_view family) const {
  const std::string prefix = std::string(family) + '.';
  std::vector<std::string> names;
  for (auto it = tables_.lower_bound(prefix);
       it != tables_.end() && it->first.rfind(prefix, 0) == 0; ++it)
    names.push_back(it->first.substr(prefix.size()));
  return names;
}

const std::string& Profile::text(std::string_view table, std::string_view key) const {
  return std::get<std::string>(find(table, key)->value);
}

int64_t Profile::integer(std::string_view table, std::string_view key) const {
  return std::get<int64_t>(find(table, key)->value);
}

double Profile::number(std::string_view table, std::string_view key) const {
  return std::get<double>(find(table, key)->value);
}

bool Profile::boolean(std::string_view table, std::string_view key) const {
  return std::get<bool>(find(table, key)->value);
}

absl::Status Profile::inherit(const Profile& from) {
  for (const char* table : {"model", "plugins"}) {
    for (auto& [key, setting] : tables_[table]) {
      const Setting& other = *from.find(table, key);
      if (setting.layer != Layer::kDefault || other.layer == Layer::kDefault) continue;
      setting = other;
      // Paths are no longer relative to a profile's folder: this one may lie in another.
      setting.layer = Layer::kEnvironment;
      const bool is_path = key == "path" || key == "directories" || names_file(key);
      if (!is_path) continue;
      auto* list = std::get_if<std::vector<std::string>>(&setting.value);
      for (std::string& text : list == nullptr ? std::span(&std::get<std::string>(setting.value), 1)
                                               : std::span(*list)) {
        absl::StatusOr<std::string> path = from.expanded(text, other);
        if (!path.ok()) return path.status();
        text = *std::move(path);
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Profile::path(std::string_view table, std::string_view key) const {
  const Setting& setting = *find(table, key);
  return expanded(std::get<std::string>(setting.value), setting);
}

absl::StatusOr<std::vector<std::string>> Profile::plugin_directories() const {
  const Setting& setting = *find("plugins", "directories");
  std::vector<std::string> directories;
  for (const std::string& directory : std::get<std::vector<std::string>>(setting.value)) {
    absl::StatusOr<std::string> path = expanded(directory, setting);
    if (!path.ok()) return path.status();
    directories.push_back(*std::move(path));
  }
  return directories;
}

absl::StatusOr<std::string> Profile::expanded(const std::string& text, const Setting& from) const {
  std::string path;
  size_t done = 0;
  for (size_t at = text.find("${"); at != std::string::npos; at = text.find("${", done)) {
    const size_t end = text.find('}', at);
    if (end == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(from.where, ": found ", quoted(text), "; expected a } after ${"));
    }
    const std::string name = text.substr(at + 2, end - at - 2);
    const char* variable = std::getenv(name.c_str());
    if (variable == nullptr && from.layer != Layer::kDefault) {
      return absl::InvalidArgumentError(absl::StrCat(from.where, ": found ", quoted(text),
                                                     "; expected the environment variable ",
                                                     quoted(name), " to be set"));
    }
    absl::StrAppend(&path, text.substr(done, at - done), variable == nullptr ? "" : variable);
    done = end + 1;
  }
  path += text.substr(done);
  if (from.layer == Layer::kFile && !path.empty() && path.front() != '/') path = folder_ + path;
  return path;
}

absl::StatusOr<Setting> Profile::plugin_setting(std::string_view table, const KeySpec& spec) const {
  const auto [home_table, home_key] = home_of(table, spec.key);
  const Setting* found = find(home_table, home_key);
  // A host default yields to the plugin's own.
  const bool yields = found != nullptr && found->layer == Layer::kDefault && home_table == table;
  if (found == nullptr || yields)
    return Setting{spec.default_value, false, Layer::kDefault, "default"};

  Setting setting = *found;
  absl::StatusOr<Value> value = setting.is_text
                                    ? parsed_value(spec, std::get<std::string>(setting.value))
                                    : checked_value(spec, setting.value);
  if (!value.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(setting.where, ": ", std::string(home_table),
                                                   ".", std::string(home_key), ": ",
                                                   value.status().message()));
  }
  setting.value = *std::move(value);
  setting.is_text = false;
  if (auto* text = std::get_if<std::string>(&setting.value);
      text != nullptr && names_file(spec.key)) {
    absl::StatusOr<std::string> path = expanded(*text, setting);
    if (!path.ok()) return path.status();
    *text = *std::move(path);
  }
  return setting;
}

absl::StatusOr<PluginValues> Profile::plugin_values(std::string_view table,
                                                    const std::vector<KeySpec>& specs) const {
  ErrorList errors;
  PluginValues values;
  for (const KeySpec& spec : specs) {
    absl::StatusOr<Setting> setting = plugin_setting(table, spec);
    if (setting.ok()) {
      values.emplace_back(spec.key, *std::move(setting));
    } else {
      errors.add(Layer::kFile, 0, 0, std::string(setting.status().message()));
    }
  }
  const TableSpec& host = *find_table(table);
  const Setting& plugin = *find(table, "plugin");
  std::vector<KeySpec> known = host.keys;
  for (const KeySpec& spec : specs) {
    if (home_of(table, spec.key).first == table) known.push_back(spec);
  }
  for (const auto& [key, setting] : this->table(table)) {
    if (find_key(known, key) != nullptr || setting.layer < plugin.layer) continue;
    errors.add(setting.layer, 0, 0,
               absl::StrCat(setting.where, ": found unknown key ",
                            quoted(absl::StrCat(host.name, ".", key)),
                            "; expected a parameter of the ", host.name, " plugin ",
                            to_text(plugin.value), suggestion(key, names_of(known))));
  }
  const absl::Status status = errors.status();
  if (!status.ok()) return status;
  return values;
}

}  // namespace varve
