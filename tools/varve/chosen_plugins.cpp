#include "tools/varve/chosen_plugins.h"

#include <filesystem>

#include "absl/strings/str_cat.h"

namespace varve::cli {

absl::StatusOr<std::vector<std::string>> plugin_directories(const Profile& profile) {
  absl::StatusOr<std::vector<std::string>> directories = profile.plugin_directories();
  if (!directories.ok()) return directories;
  for (std::string& directory : *directories)
    directory = std::filesystem::absolute(directory).string();
  if (directories->empty()) directories->push_back(default_plugin_directory());
  return directories;
}

absl::StatusOr<std::vector<ChosenPlugin>> chosen_plugins(const Profile& profile) {
  const absl::StatusOr<std::vector<std::string>> directories = plugin_directories(profile);
  if (!directories.ok()) return directories.status();
  std::vector<ChosenPlugin> chosen;
  for (const TableSpec& table : profile_tables()) {
    if (!table.has_plugin) continue;
    const std::string& name = profile.text(table.name, "plugin");
    if (name == "none" && table.name != "runtime") continue;
    absl::StatusOr<PluginLibrary> library = load_plugin(*directories, table.name, name);
    if (!library.ok()) {
      return absl::Status(library.status().code(),
                          absl::StrCat(profile.find(table.name, "plugin")->where, ": ", table.name,
                                       ".plugin: ", library.status().message()));
    }
    absl::StatusOr<PluginValues> values = profile.plugin_values(table.name, library->info.params);
    if (!values.ok()) return values.status();
    chosen.push_back({table.name, *std::move(library), *std::move(values)});
  }
  return chosen;
}

}  // namespace varve::cli
