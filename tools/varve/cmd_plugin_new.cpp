// varve plugin new: a folder to start a plugin from.
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "core/config/keys.h"
#include "core/plugin/library.h"
#include "tools/varve/cmd_plugin.h"
#include "tools/varve/plugin_new.h"

namespace varve::cli {
namespace {

namespace fs = std::filesystem;

// Where the program and the SDK are installed, or the build tree.
fs::path prefix() { return fs::path(default_plugin_directory()).parent_path().parent_path(); }

// What to type next, one command a line.
std::vector<std::string> next_commands(const NewPlugin& plugin) {
  std::vector<std::string> commands;
  const fs::path sdk = prefix();
  if (sdk != "/usr" && sdk != "/usr/local") {
    commands.push_back(absl::StrCat("export CMAKE_PREFIX_PATH=", sdk.string()));
  }
  const std::string library = absl::StrCat("build/release/", plugin.kind, "-", plugin.name, ".so");
  commands.push_back(absl::StrCat("cd ", plugin.directory));
  commands.emplace_back("cmake --preset release");
  commands.emplace_back("cmake --build --preset release");
  commands.emplace_back("ctest --preset release");
  commands.push_back(absl::StrCat("varve plugin check ", library));
  commands.push_back(absl::StrCat("mri-conform ", library));
  commands.push_back(absl::StrCat("varve plugin info ", plugin.kind, "/", plugin.name,
                                  " --set plugins.directories=$PWD/build/release"));
  return commands;
}

// "mine" for "mine/" and "./mine".
std::string tidy_path(const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  return normal.has_filename() ? normal.string() : normal.parent_path().string();
}

// A name of the program's own plugins would hide them, or be hidden.
absl::Status check_not_built_in(const NewPlugin& plugin) {
  if (!is_table_name(plugin.name)) return absl::OkStatus();  // said later
  const absl::StatusOr<std::string> path =
      find_plugin({default_plugin_directory()}, plugin.kind, plugin.name);
  if (!path.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "found the name of a plugin that is there already, ", *path, "; expected another name"));
}

}  // namespace

int plugin_new(const CommandLine& line, const std::vector<std::string>& words) {
  if (words.size() != 3) return line.usage_error("expected 'new', a kind and a name");
  NewPlugin plugin{words[1], words[2], ""};
  plugin.directory = line.has("directory") ? line.get<std::string>("directory")
                                           : absl::StrCat(plugin.kind, "-", plugin.name);
  plugin.directory = tidy_path(plugin.directory);
  if (const absl::Status status = check_not_built_in(plugin); !status.ok()) {
    return report(status, kExitUsage);
  }
  absl::StatusOr<std::vector<std::string>> files =
      write_new_plugin(plugin, (prefix() / "share" / "mri" / "template").string());
  if (!files.ok()) return report(files.status(), kExitUsage);
  const std::vector<std::string> commands = next_commands(plugin);
  if (line.json()) {
    const nlohmann::ordered_json json = {
        {"directory", plugin.directory}, {"files", *files}, {"next", commands}};
    std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    return kExitOk;
  }
  std::cout << "Made " << plugin.directory << ":\n";
  for (const std::string& file : *files) std::cout << "  " << file << "\n";
  std::cout << "Next:\n";
  for (const std::string& command : commands) std::cout << "  " << command << "\n";
  return kExitOk;
}

}  // namespace varve::cli
