#include "tools/varve/chosen_plugins.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "core/plugin/worker.h"

namespace varve::cli {

absl::StatusOr<std::vector<std::string>> plugin_directories(const Profile& profile) {
  absl::StatusOr<std::vector<std::string>> directories = profile.plugin_directories();
  if (!directories.ok()) return directories;
  for (std::string& directory : *directories)
    directory = std::filesystem::absolute(directory).string();
  if (directories->empty()) directories->push_back(default_plugin_directory());
  return directories;
}

namespace {

// One with a process of its own is described there: nothing of it may run here.
absl::StatusOr<PluginLibrary> described(const std::vector<std::string>& directories,
                                        const std::string& kind, const std::string& name,
                                        const Isolation& isolation, const Trust& trust) {
  if (!isolation.is_worker) return load_plugin(directories, kind, name, {}, trust);
  absl::StatusOr<std::string> path = find_plugin(directories, kind, name);
  if (!path.ok()) return path.status();
  WorkerSpec spec;
  spec.load.path = *std::move(path);
  spec.load.kind = spec.load.who = kind;
  spec.isolation = isolation;
  spec.trust = trust;
  const absl::StatusOr<std::unique_ptr<WorkerPlugin>> worker = WorkerPlugin::start(spec);
  if (!worker.ok()) return worker.status();
  return PluginLibrary{(*worker)->info(), nullptr};
}

}  // namespace

absl::StatusOr<std::vector<ChosenPlugin>> chosen_plugins(const Profile& profile) {
  const absl::StatusOr<std::vector<std::string>> directories = plugin_directories(profile);
  if (!directories.ok()) return directories.status();
  std::vector<ChosenPlugin> chosen;
  for (const TableSpec& table : profile_tables()) {
    if (!table.has_plugin) continue;
    const std::string& name = profile.text(table.name, "plugin");
    if (name == "none" && table.name != "runtime") continue;
    absl::StatusOr<Isolation> isolation = isolation_of(profile, table.name);
    if (!isolation.ok()) return isolation.status();
    if (!isolation->fallback.empty()) {
      absl::StatusOr<std::string> path = find_plugin(*directories, table.name, isolation->fallback);
      if (!path.ok()) return path.status();
      isolation->fallback = *std::move(path);
    }
    absl::StatusOr<Trust> trust = trust_of(profile, table.name);
    if (!trust.ok()) return trust.status();
    absl::StatusOr<PluginLibrary> library =
        described(*directories, table.name, name, *isolation, *trust);
    if (!library.ok()) {
      return absl::Status(library.status().code(),
                          absl::StrCat(profile.find(table.name, "plugin")->where, ": ", table.name,
                                       ".plugin: ", library.status().message()));
    }
    absl::StatusOr<PluginValues> values = profile.plugin_values(table.name, library->info.params);
    if (!values.ok()) return values.status();
    chosen.push_back({table.name, *std::move(library), *std::move(values), *std::move(isolation),
                      *std::move(trust)});
  }
  return chosen;
}

}  // namespace varve::cli
