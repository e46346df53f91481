// A profile: values by table and key, each with the place it came from, merged from four layers.
// Command line (--set table.key=value) > environment (VARVE_<TABLE>_<KEY>) > profile file >
// default. Tables with names are set as --set class.vip.priority=10, which makes the table when it
// is not there, and VARVE_CLASS_VIP_PRIORITY=10 (- in a name is _), which needs a table in the
// file.
//
// Host keys are checked here. Keys of plugins are kept as found and checked by plugin_values() once
// the plugin's description is known. An error is one line: the first problem by position with
// file:line:column, what was found, what was expected and the nearest known name, then how many
// more there are.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/keys.h"
#include "core/config/value.h"

namespace varve {

enum class Layer { kDefault, kFile, kEnvironment, kCommandLine };

struct Setting {
  Value value;
  bool is_text =
      false;  // from a command line or the environment, for a plugin: its type is not known yet
  Layer layer = Layer::kDefault;
  std::string where;  // "configs/laptop.toml:12:5", "environment variable VARVE_…", "--set a.b=c",
                      // "default"
};

struct ProfileSources {
  std::string path;  // profile file; empty: none
  std::vector<std::pair<std::string, std::string>>
      environment;                     // name, value; other names are ignored
  std::vector<std::string> overrides;  // "table.key=value", the last one wins
};

using SettingTable = std::map<std::string, Setting, std::less<>>;
using PluginValues = std::vector<std::pair<std::string, Setting>>;

// The VARVE_* variables of this process.
std::vector<std::pair<std::string, std::string>> varve_environment();

class Profile {
 public:
  // Reads the file and merges all layers.
  static absl::StatusOr<Profile> load(const ProfileSources& sources);
  // The same with the file's text given; `sources.path` is only its name in messages.
  static absl::StatusOr<Profile> parse(std::string_view text, const ProfileSources& sources);

  // A host key always has a setting; nullptr for a plugin's key that no layer sets.
  const Setting* find(std::string_view table, std::string_view key) const;
  // All settings of a table, by key.
  const SettingTable& table(std::string_view name) const;
  // The names of the tables [family.NAME] that a layer mentions, sorted: {"standard", "vip"} for
  // "class".
  std::vector<std::string> names(std::string_view family) const;

  // Typed access to a host key of that type.
  const std::string& text(std::string_view table, std::string_view key) const;
  int64_t integer(std::string_view table, std::string_view key) const;
  double number(std::string_view table, std::string_view key) const;

  bool boolean(std::string_view table, std::string_view key) const;

  // What no layer sets in [model] and [plugins] here is taken from `from`.
  absl::Status inherit(const Profile& from);

  // A text that names a file: ${NAME} replaced by environment variables (unset is an error, except
  // in a default), a relative path in a profile file taken from that file's folder. Empty stays
  // empty.
  absl::StatusOr<std::string> path(std::string_view table, std::string_view key) const;
  // [plugins] directories, each as path() does.
  absl::StatusOr<std::vector<std::string>> plugin_directories() const;

  // Values for all parameters that the plugin of `table` describes, defaults included, in the order
  // of `specs`. A value written for a plugin that a higher layer replaced is dropped when the new
  // plugin does not know it. A host key that the plugin describes too is passed on; "model_path",
  // "tokenizer_path" and "model_name" come from [model].
  absl::StatusOr<PluginValues> plugin_values(std::string_view table,
                                             const std::vector<KeySpec>& specs) const;

 private:
  absl::StatusOr<std::string> expanded(const std::string& text, const Setting& from) const;
  absl::StatusOr<Setting> plugin_setting(std::string_view table, const KeySpec& spec) const;

  std::string folder_;  // of the profile file, with a final '/', or empty
  std::map<std::string, SettingTable, std::less<>> tables_;
};

}  // namespace varve
