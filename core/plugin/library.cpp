#include "core/plugin/library.h"

#include <algorithm>
#include <atomic>
#include <boost/dll/shared_library.hpp>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "core/base/limits.h"
#include "core/base/mutex.h"
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

// What this process has mapped, for good: never destroyed, and reachable, so that a leak checker
// sees that this is meant.
class Mappings {
 public:
  using Library = boost::dll::shared_library;

  static Mappings& all() {
    static auto* all = new Mappings();
    return *all;
  }

  // The mapping of these bytes; for nobody who checks bytes, one by path: that file may have
  // changed between reading and loading.
  const Library* find(const LibraryFile& file, bool wants_copy) {
    const MutexLock lock(&mutex_);
    for (const Mapping& one : mappings_) {
      if (one.sha256 == file.sha256 && (one.is_copy || (!wants_copy && one.path == file.path)))
        return one.library;
    }
    return nullptr;
  }
  // The loader takes a path that it has loaded for the same library, whatever lies there now.
  bool has_path(const std::string& path) {
    const MutexLock lock(&mutex_);
    return std::any_of(mappings_.begin(), mappings_.end(),
                       [&](const Mapping& one) { return !one.is_copy && one.path == path; });
  }
  void keep(const LibraryFile& file, bool is_copy, const Library* library) {
    const MutexLock lock(&mutex_);
    mappings_.push_back({file.path, file.sha256, is_copy, library});
  }

 private:
  struct Mapping {
    std::string path, sha256;
    bool is_copy;
    const Library* library;
  };

  Mutex mutex_;
  std::vector<Mapping> mappings_ ABSL_GUARDED_BY(mutex_);
};

// A sealed copy by a name that the loader has not seen: the number of a descriptor comes again.
std::string name_of_copy(int fd) {
  static std::atomic<size_t> n_copies{0};
  return absl::StrCat("/proc/self/fd", std::string(++n_copies, '/'), fd);
}

absl::StatusOr<const Mappings::Library*> map_library(const LibraryFile& file, bool is_copy) {
  namespace load_mode = boost::dll::load_mode;
  std::string name = file.path;
  Descriptor copy(-1);
  if (is_copy) {
    absl::StatusOr<Descriptor> sealed = sealed_copy(file);
    if (!sealed.ok()) return sealed.status();
    copy = *std::move(sealed);
    name = name_of_copy(copy.get());
  }
  const PluginIdentity identity("not loaded yet", file.path, file.sha256);
  const BreadcrumbScope scope({&identity, "dlopen"});
  try {
    return new Mappings::Library(name, load_mode::rtld_now | load_mode::rtld_local);
  } catch (const std::exception& e) {
    return refused(
        {"MRI-E004", file.path, "loading", "a library whose symbols all resolve",
         clean_text(absl::StrReplaceAll(e.what(), {{name, file.path}}), kLogLineBytesMax),
         "Link what it needs into it; -Wl,-z,defs names it at build time."});
  }
}

absl::StatusOr<const mri_plugin_entry*> entry_in(const LibraryFile& file, const Trust& trust) {
  const bool wants_copy = trust.checks_bytes();
  const Mappings::Library* library = Mappings::all().find(file, wants_copy);
  if (library == nullptr) {
    const bool is_copy = wants_copy || Mappings::all().has_path(file.path);
    const absl::StatusOr<const Mappings::Library*> mapped = map_library(file, is_copy);
    if (!mapped.ok()) return mapped.status();
    Mappings::all().keep(file, is_copy, *mapped);
    library = *mapped;
  }
  if (!library->has(kEntryName)) {
    return refused({"MRI-E005", file.path, "entry", absl::StrCat("the data symbol ", kEntryName),
                    "none",
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
                                                  VersionRange host, const Trust& trust) {
  const absl::StatusOr<LibraryFile> file = read_library(path, trust);
  if (!file.ok()) return file.status();
  return load(*file, kind, host, trust);
}

absl::StatusOr<PluginLibrary> PluginLibrary::load(const LibraryFile& file, std::string_view kind,
                                                  VersionRange host, const Trust& trust) {
  if (const absl::Status status = check_exports(file.path, file.bytes); !status.ok()) return status;
  if (const absl::Status status = check_not_crashed(file.path, file.sha256); !status.ok())
    return status;
  const absl::StatusOr<const mri_plugin_entry*> entry = entry_in(file, trust);
  if (!entry.ok()) return entry.status();
  absl::StatusOr<PluginInfo> info = checked_entry(**entry, file.path, kind, host);
  if (!info.ok()) return info.status();
  info->name = plugin_name_in(file.path, info->kind);
  info->sha256 = file.sha256;
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
                                          VersionRange host, const Trust& trust) {
  const absl::StatusOr<std::string> path = find_plugin(directories, kind, name);
  if (!path.ok()) return path.status();
  return PluginLibrary::load(*path, kind, host, trust);
}

std::vector<ListedPlugin> list_plugins(
    const std::vector<std::string>& directories,
    const std::function<absl::StatusOr<Trust>(std::string_view)>& trust) {
  const auto load = [&](const std::string& path) -> absl::StatusOr<PluginInfo> {
    const std::string stem = fs::path(path).stem().string();
    absl::StatusOr<Trust> needed = Trust();
    if (trust) needed = trust(stem.substr(0, stem.find('-')));
    if (!needed.ok()) return needed.status();
    absl::StatusOr<PluginLibrary> library = PluginLibrary::load(path, "", {}, *needed);
    if (!library.ok()) return library.status();
    return std::move(library->info);
  };
  std::vector<ListedPlugin> plugins;
  for (const std::string& path : libraries_in(directories)) plugins.push_back({path, load(path)});
  return plugins;
}

std::string default_plugin_directory() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return (program.parent_path().parent_path() / "lib" / "varve").string();
}

}  // namespace varve
