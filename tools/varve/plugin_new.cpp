#include "tools/varve/plugin_new.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "core/base/text.h"
#include "core/config/keys.h"
#include "core/config/nearest_name.h"
#include "core/config/value.h"

namespace varve::cli {
namespace {

namespace fs = std::filesystem;

// Where each template goes; "*" stands for the kind.
constexpr std::pair<const char*, const char*> kFiles[] = {
    {"common/CMakeLists.txt.in", "CMakeLists.txt"},
    {"common/CMakePresets.json.in", "CMakePresets.json"},
    {"common/README.md.in", "README.md"},
    {"common/ci.yml.in", ".github/workflows/ci.yml"},
    {"common/gitignore.in", ".gitignore"},
    {"*/plugin.cpp.in", "plugin.cpp"},
    {"*/plugin_test.cpp.in", "plugin_test.cpp"},
};

absl::Status check(const NewPlugin& plugin) {
  if (const absl::Status status = check_kind(plugin.kind); !status.ok()) return status;
  if (!is_table_name(plugin.name) || plugin.name == "none") {
    return absl::InvalidArgumentError(absl::StrCat("found name ", varve::quoted(plugin.name),
                                                   "; expected a small letter, then up to 31 small "
                                                   "letters, digits, '_' or '-'; not \"none\""));
  }
  std::error_code error;
  if (fs::symlink_status(plugin.directory, error).type() != fs::file_type::not_found) {
    return absl::InvalidArgumentError(absl::StrCat(plugin.directory,
                                                   ": found something there already; expected a "
                                                   "new folder: name another with --directory"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat(path.string(),
                     ": found no readable file; expected a template of the plugin SDK: install "
                     "the package libmri-dev, or component sdk of the build"));
  }
  return text;
}

// Fails when somebody else has made it meanwhile: what is in it is theirs.
absl::Status make_folder(const fs::path& path) {
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  if (!error && fs::create_directory(path, error)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path.string(), ": found that the folder cannot be made (",
                   error ? error.message() : "it exists", "); expected a place to write to"));
}

absl::Status write_file(const fs::path& path, const std::string& text) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(path.string(), ": cannot be written: ", error ? error.message() : "file error"));
}

}  // namespace

absl::Status check_kind(const std::string& kind) {
  std::vector<std::string> known;
  for (const TableSpec& table : profile_tables()) {
    if (table.has_plugin) known.push_back(table.name);
  }
  if (std::find(known.begin(), known.end(), kind) != known.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("found kind ", varve::quoted(kind),
                                                 "; expected one of ", absl::StrJoin(known, ", "),
                                                 suggestion(kind, known)));
}

absl::StatusOr<std::vector<std::string>> write_new_plugin(const NewPlugin& plugin,
                                                          const std::string& templates) {
  absl::Status status = check(plugin);
  if (!status.ok()) return status;
  // All of it is read before anything is made.
  absl::StatusOr<std::string> about = read_file(fs::path(templates) / plugin.kind / "about.txt");
  if (!about.ok()) return about.status();
  while (!about->empty() && about->back() == '\n') about->pop_back();
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& [from, to] : kFiles) {
    const absl::StatusOr<std::string> text =
        read_file(fs::path(templates) / absl::StrReplaceAll(from, {{"*", plugin.kind}}));
    if (!text.ok()) return text.status();
    files.emplace_back(
        to, absl::StrReplaceAll(
                *text, {{"@kind@", plugin.kind}, {"@name@", plugin.name}, {"@about@", *about}}));
  }
  std::sort(files.begin(), files.end());
  status = make_folder(plugin.directory);
  if (!status.ok()) return status;
  std::vector<std::string> written;
  for (const auto& [to, text] : files) {
    if (status.ok()) status = write_file(fs::path(plugin.directory) / to, text);
    written.push_back(to);
  }
  if (!status.ok()) {
    std::error_code error;
    fs::remove_all(plugin.directory, error);
    return status;
  }
  return written;
}

}  // namespace varve::cli
