#include "tools/varve/system_libraries.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/file.h"
#include "core/base/limits.h"

namespace varve::cli {
namespace {

// Empty when the process has no such library. "libstdc++.so.6" is mapped as libstdc++.so.6.0.30.
std::string path_of(const std::string& library) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/');
    if (path == std::string::npos) continue;
    const std::string name = std::filesystem::path(line.substr(path)).filename();
    if (name == library || absl::StartsWith(name, library + ".")) return line.substr(path);
  }
  return "";
}

}  // namespace

bool SystemLibraries::lacks(const std::string& library, const std::string& version) {
  auto it = bytes_.find(library);
  if (it == bytes_.end()) {
    const absl::StatusOr<std::string> bytes = read_file(path_of(library), kPluginFileBytesMax);
    it = bytes_.emplace(library, bytes.ok() ? *bytes : "").first;
  }
  // Each version that a library has is a text in it.
  return !it->second.empty() &&
         it->second.find(absl::StrCat(version, std::string(1, '\0'))) == std::string::npos;
}

}  // namespace varve::cli
