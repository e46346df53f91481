// One plugin library: found, checked, loaded, described. Nothing of it is opened here.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/value.h"
#include "core/plugin/library_file.h"
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
  std::string sha256;  // of the file, 64 hex digits
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

  // `path` is absolute; `kind` "" takes any kind. Errors are Refusals. Thread-safe. Bytes that
  // were loaded before are not loaded again. Where trust is a matter of bytes, or another library
  // was loaded from this path before, what is loaded is a sealed copy of the bytes in memory,
  // which debuggers see as "/memfd:…".
  static absl::StatusOr<PluginLibrary> load(const std::string& path, std::string_view kind,
                                            VersionRange host = {}, const Trust& trust = {});
  // The same of a file that read_library() has checked with this `trust`.
  static absl::StatusOr<PluginLibrary> load(const LibraryFile& file, std::string_view kind,
                                            VersionRange host, const Trust& trust);
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
                                          VersionRange host = {}, const Trust& trust = {});

// Every *.so of the directories, by path, with what it is or why it is refused. `trust` gets the
// kind that the file's name begins with.
struct ListedPlugin {
  std::string path;
  absl::StatusOr<PluginInfo> info;
};
std::vector<ListedPlugin> list_plugins(
    const std::vector<std::string>& directories,
    const std::function<absl::StatusOr<Trust>(std::string_view kind)>& trust = nullptr);

// "../lib/varve" seen from this program's folder.
std::string default_plugin_directory();

}  // namespace varve
