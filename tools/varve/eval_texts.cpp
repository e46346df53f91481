#include "tools/varve/eval_texts.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "tools/varve/command.h"

namespace varve::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLicences = "/usr/share/common-licenses/";
constexpr const char* kLicenceNames[] = {"GPL-3",   "MPL-2.0",  "GFDL-1.3", "Apache-2.0",
                                         "CC0-1.0", "LGPL-2.1", "MPL-1.1",  "Artistic"};
constexpr const char* kManualRoot = "/usr/share";  // cmake-<version>/Help/manual below it

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<std::string> read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file || text.empty()) {
    return absl::NotFoundError(
        absl::StrCat(path, ": found no readable text (", std::strerror(errno), ")"));
  }
  return text;
}

// Sorted, so that every run reads the same.
std::vector<std::string> manual_paths() {
  std::vector<std::string> paths;
  std::error_code failed;
  for (const auto& folder : fs::directory_iterator(kManualRoot, failed)) {
    if (folder.path().filename().string().rfind("cmake-", 0) != 0) continue;
    for (const auto& page : fs::directory_iterator(folder.path() / "Help/manual", failed)) {
      if (page.path().extension() == ".rst") paths.push_back(page.path().string());
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// What this machine has, prose first; the first `*n_always` are read whatever the length.
std::vector<std::string> default_paths(size_t* n_always) {
  std::vector<std::string> paths;
  const auto add = [&](const std::string& path) {
    std::error_code failed;
    if (fs::is_regular_file(path, failed)) paths.push_back(path);
  };
  const std::string document = variable("VARVE_DOCUMENT");
  add(document.empty() ? cache_directory() + "/documents/debian-faq.txt" : document);
  for (const char* name : kLicenceNames) add(absl::StrCat(kLicences, name));
  *n_always = paths.size();
  for (std::string& path : manual_paths()) paths.push_back(std::move(path));
  return paths;
}

}  // namespace

std::string cache_directory() {
  if (const std::string own = variable("VARVE_CACHE"); !own.empty()) return own;
  if (const std::string xdg = variable("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/varve";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/varve";
}

absl::StatusOr<std::vector<std::vector<int32_t>>> text_windows(
    const Text& text, const std::vector<std::string>& paths, uint64_t n_tokens, uint64_t n_texts) {
  size_t n_always = paths.size();
  const std::vector<std::string> sources = paths.empty() ? default_paths(&n_always) : paths;
  std::vector<int32_t> all;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (i >= n_always && all.size() >= n_tokens * n_texts) break;
    const absl::StatusOr<std::string> bytes = read_text(sources[i]);
    if (!bytes.ok()) return bytes.status();
    const absl::StatusOr<std::vector<int32_t>> tokens =
        text.tokenize(*bytes, /*add_special=*/false, /*parse_special=*/false);
    if (!tokens.ok()) return tokens.status();
    all.insert(all.end(), tokens->begin(), tokens->end());
  }
  if (all.size() < n_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("found ", count_text(all.size()), " tokens of text in ", sources.size(),
                     " files; expected ", count_text(n_tokens),
                     ": run tools/setup, or name longer texts with --text"));
  }
  std::vector<std::vector<int32_t>> windows;
  const uint64_t room = all.size() - n_tokens;
  for (uint64_t i = 0; i < n_texts; ++i) {
    const auto first =
        all.begin() + static_cast<ptrdiff_t>(n_texts == 1 ? 0 : room * i / (n_texts - 1));
    windows.emplace_back(first, first + static_cast<ptrdiff_t>(n_tokens));
  }
  return windows;
}

}  // namespace varve::cli
