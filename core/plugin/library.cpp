#include "core/plugin/library.h"

#include <algorithm>
#include <boost/dll/shared_library.hpp>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/limits.h"
#include "core/base/mutex.h"
#include "core/base/sha256.h"
#include "core/base/text.h"
#include "core/config/nearest_name.h"
#include "core/plugin/crash_record.h"
#include "core/plugin/elf_exports.h"
#include "core/plugin/entry_check.h"
#include "core/plugin/refusal.h"

namespace varve {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEntryName = "mri_plugin_entry_v1";

absl::StatusOr<std::string> read_library(const std::string& path) {
  const auto bad_file = [&](const std::string& has, const std::string& do_this) {
    return not_found(
        {"MRI-E001", path, "file", "an absolute path to a plugin library", has, do_this});
  };
  if (path.empty() || path[0] != '/') return bad_file("a relative path", "Give the whole path.");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return bad_file("no such file", "Build the plugin or correct the path.");
  if (!fs::is_regular_file(status)) {
    return bad_file("something that is not a regular file", "Name the .so file itself.");
  }
  const uint64_t size = fs::file_size(path, error);
  if (error || size > kPluginFileBytesMax) {
    return bad_file(error ? error.message() : absl::StrCat(size, " bytes"),
                    absl::StrCat("A plugin has at most ", kPluginFileBytesMax, " bytes."));
  }
  std::ifstream file(path, std::ios::binary);
  std::string bytes(size, '\0');
  if (!file.read(bytes.data(), static_cast<std::streamsize>(size))) {
    return bad_file("an unreadable file", "Check its permissions.");
  }
  return bytes;
}

absl::Status check_exports(const std::string& path, const std::string& file) {
  const absl::StatusOr<std::vector<std::string>> names = elf_exports(file);
  if (!names.ok()) {
    return refused({"MRI-E002", path, "file format", "a 64-bit ELF shared library for this machine",
                    std::string(names.status().message()), "Build it with mri_add_plugin()."});
  }
  std::vector<std::string> others;
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, "mri_plugin_entry_v")) others.push_back(name);
  }
  if (others.empty()) return absl::OkStatus();
  const size_t n = others.size();
  others.resize(std::min<size_t>(n, 3));
  return refused({"MRI-E003", path, "exported symbols", "mri_plugin_entry_v<major> alone",
                  absl::StrCat(n, " more: ", absl::StrJoin(others, ", "), n > 3 ? ", …" : ""),
                  "Link with mri_plugin.map and -fvisibility=hidden, as mri_add_plugin() does."});
}

// Never destroyed, and reachable, so that a leak checker sees that this is meant.
void keep_mapped(const boost::dll::shared_library* library) {
  static auto* mutex = new Mutex();
  static auto* kept = new std::vector<const boost::dll::shared_library*>();
  const MutexLock lock(mutex);
  kept->push_back(library);
}

// Maps the library for good.
absl::StatusOr<const mri_plugin_entry*> map_library(const std::string& path,
                                                    const std::string& sha256) {
  namespace load_mode = boost::dll::load_mode;
  const boost::dll::shared_library* library = nullptr;
  const PluginIdentity identity("not loaded yet", path, sha256);
  const BreadcrumbScope scope({&identity, "dlopen"});
  try {
    library = new boost::dll::shared_library(path, load_mode::rtld_now | load_mode::rtld_local);
  } catch (const std::exception& e) {
    return refused({"MRI-E004", path, "loading", "a library whose symbols all resolve",
                    clean_text(e.what(), kLogLineBytesMax),
                    "Link what it needs into it; -Wl,-z,defs names it at build time."});
  }
  keep_mapped(library);
  if (!library->has(kEntryName)) {
    return refused({"MRI-E005", path, "entry", absl::StrCat("the data symbol ", kEntryName), "none",
                    "Add MRI_PLUGIN(…) to one source; a major 2 plugin needs a newer varve."});
  }
  return &library->get<const mri_plugin_entry>(kEntryName);
}

std::vector<std::string> libraries_in(const std::vector<std::string>& directories) {
  std::vector<std::string> paths;
  for (const std::string& directory : directories) {
    std::error_code error;
    std::vector<std::string> here;
    for (fs::directory_iterator it(directory, error), end; !error && it != end;
         it.increment(error)) {
      if (it->path().extension() == ".so") here.push_back(fs::absolute(it->path()).string());
    }
    std::sort(here.begin(), here.end());
    paths.insert(paths.end(), here.begin(), here.end());
  }
  return paths;
}

}  // namespace

uint32_t negotiated_version(VersionRange host, VersionRange plugin) {
  const uint32_t chosen = std::min(host.max, plugin.max);
  return chosen >= std::max(host.min, plugin.min) ? chosen : 0;
}

absl::StatusOr<PluginLibrary> PluginLibrary::load(const std::string& path, std::string_view kind,
                                                  VersionRange host) {
  const absl::StatusOr<std::string> file = read_library(path);
  if (!file.ok()) return file.status();
  if (const absl::Status status = check_exports(path, *file); !status.ok()) return status;
  const std::string sha256 = sha256_hex(*file);
  if (const absl::Status status = check_not_crashed(path, sha256); !status.ok()) return status;
  const absl::StatusOr<const mri_plugin_entry*> entry = map_library(path, sha256);
  if (!entry.ok()) return entry.status();
  absl::StatusOr<PluginInfo> info = checked_entry(**entry, path, kind, host);
  if (!info.ok()) return info.status();
  info->name = plugin_name_in(path, info->kind);
  info->sha256 = sha256;
  return PluginLibrary{*std::move(info), *entry};
}

std::string plugin_name_in(const std::string& path, const std::string& kind) {
  const std::string stem = fs::path(path).stem().string();
  return absl::StartsWith(stem, kind + "-") ? stem.substr(kind.size() + 1) : stem;
}

absl::StatusOr<std::string> find_plugin(const std::vector<std::string>& directories,
                                        std::string_view kind, const std::string& name) {
  if (absl::StrContains(name, "/")) return name;
  const std::string prefix = absl::StrCat(std::string(kind), "-");
  for (const std::string& directory : directories) {
    const fs::path path = fs::path(directory) / absl::StrCat(prefix, name, ".so");
    std::error_code error;
    if (fs::exists(path, error)) return fs::absolute(path).string();
  }
  std::vector<std::string> known;
  for (const std::string& path : libraries_in(directories)) {
    const std::string stem = fs::path(path).stem().string();
    if (absl::StartsWith(stem, prefix)) known.push_back(stem.substr(prefix.size()));
  }
  const std::string nearest = nearest_name(name, known);
  const std::string clean = clean_text(name, kPluginTextBytesMax);
  return not_found({"MRI-E001", absl::StrCat(std::string(kind), " plugin \"", clean, "\""), "file",
                    absl::StrCat(prefix, clean, ".so in ", absl::StrJoin(directories, ", ")),
                    known.empty() ? "no plugin of this kind there"
                                  : absl::StrCat("only ", absl::StrJoin(known, ", ")),
                    nearest.empty() ? "Build it, or correct the name or plugins.directories."
                                    : absl::StrCat("Did you mean \"", nearest, "\"?")});
}

absl::StatusOr<PluginLibrary> load_plugin(const std::vector<std::string>& directories,
                                          std::string_view kind, const std::string& name,
                                          VersionRange host) {
  const absl::StatusOr<std::string> path = find_plugin(directories, kind, name);
  if (!path.ok()) return path.status();
  return PluginLibrary::load(*path, kind, host);
}

std::vector<ListedPlugin> list_plugins(const std::vector<std::string>& directories,
                                       VersionRange host) {
  std::vector<ListedPlugin> plugins;
  for (const std::string& path : libraries_in(directories)) {
    absl::StatusOr<PluginLibrary> library = PluginLibrary::load(path, "", host);
    if (library.ok()) {
      plugins.push_back({path, std::move(library->info)});
    } else {
      plugins.push_back({path, library.status()});
    }
  }
  return plugins;
}

std::string default_plugin_directory() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return (program.parent_path().parent_path() / "lib" / "varve").string();
}

}  // namespace varve
