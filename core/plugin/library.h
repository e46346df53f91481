// One plugin library: found, checked, loaded, described. Nothing of it is opened here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/value.h"
#include "mri/entry.h"

namespace varve {

// What this host speaks. Both ends lie in one major.
struct VersionRange {
  uint32_t min = MRI_1_0;
  uint32_t max = MRI_1_1;
};

// min(host.max, plugin.max) when that is in both ranges, else 0.
uint32_t negotiated_version(VersionRange host, VersionRange plugin);

struct PluginInfo {
  std::string kind;  // "quantizer"
  std::string name;  // "int8", from the file name
  std::string path;
  std::string sha256;  // of the file, 64 hex digits; of one in a worker: empty
  std::string id, version, build;
  uint32_t built_version = 0;
  VersionRange versions;
  uint32_t negotiated = 0;
  std::vector<KeySpec> params;
};

// A loaded library that has passed every check that needs no call into it: file, exports, magic,
// sizes, texts, versions, parameter table. Its constructors have run (dlopen does that); no
// function of its entry has. Copies share the mapping, which stays until the process ends: code
// that some thread or exit handler may still run cannot be unmapped safely.
struct PluginLibrary {
  PluginInfo info;
  const mri_plugin_entry* entry = nullptr;

  // `path` is absolute; `kind` "" takes any kind. Errors are Refusals. Thread-safe.
  static absl::StatusOr<PluginLibrary> load(const std::string& path, std::string_view kind,
                                            VersionRange host = {});
};

// "int8" from "…/quantizer-int8.so".
std::string plugin_name_in(const std::string& path, const std::string& kind);

// "<directory>/<kind>-<name>.so" in the first directory that has it; a `name` with a '/' is taken
// as an absolute path. The error names the directories and the nearest name.
absl::StatusOr<std::string> find_plugin(const std::vector<std::string>& directories,
                                        std::string_view kind, const std::string& name);

// load(find_plugin(…)).
absl::StatusOr<PluginLibrary> load_plugin(const std::vector<std::string>& directories,
                                          std::string_view kind, const std::string& name,
                                          VersionRange host = {});

// Every *.so of the directories, by path, with what it is or why it is refused.
struct ListedPlugin {
  std::string path;
  absl::StatusOr<PluginInfo> info;
};
std::vector<ListedPlugin> list_plugins(const std::vector<std::string>& directories,
                                       VersionRange host = {});

// "../lib/varve" seen from this program's folder.
std::string default_plugin_directory();

}  // namespace varve
