#include "tools/mri_conform/official.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/limits.h"
#include "core/base/sha256.h"

namespace varve::conform {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFiles[] = {"result.json", "junit.xml", "report.txt"};
constexpr const char* kSums = "SHA256SUMS";

absl::Status bad(const std::string& text) { return absl::FailedPreconditionError(text); }

absl::Status check_sums(const std::string& folder) {
  const absl::StatusOr<std::string> sums = read_whole_file(folder + "/" + kSums);
  if (!sums.ok()) return sums.status();
  for (const char* name : kFiles) {
    const absl::StatusOr<std::string> bytes = read_whole_file(absl::StrCat(folder, "/", name));
    if (!bytes.ok()) return bytes.status();
    if (!absl::StrContains(*sums, absl::StrCat(sha256_hex(*bytes), "  ", name, "\n"))) {
      return bad(
          absl::StrCat(name, " is not the file that was written: its SHA-256 is not in ", kSums));
    }
  }
  return absl::OkStatus();
}

// Every must-pass test of the run's version, without anything bad.
absl::Status check_run(const nlohmann::json& run, const std::string& kind) {
  const std::string version = run.value("mri", "");
  if (run.contains("not_spoken")) return absl::OkStatus();
  std::map<std::string, std::string> status;
  for (const nlohmann::json& test : run.at("tests"))
    status[test.value("id", "")] = test.value("status", "");
  for (const mri::conformance::Test& test : mri::conformance::all_tests()) {
    if (!absl::StrContains(absl::StrCat("\n", must_pass_list(version == "1.0" ? MRI_1_0 : MRI_1_1)),
                           absl::StrCat("\n", test.id, "\n")))
      continue;
    const bool is_for_kind = kind.empty() ? test.by_url || std::string(test.kind) == "url"
                                          : std::string(test.kind) == "any" || test.kind == kind;
    if (!is_for_kind) continue;
    const std::string& found = status[test.id];
    if (found != "PASS" && found != "WARN" && found != "NOT_SUPPORTED") {
      return bad(absl::StrCat("MRI ", version, ", ", test.id, ": found ",
                              found.empty() ? "no result" : found, "; expected PASS"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> read_whole_file(const std::string& path) {
  std::error_code error;
  const bool is_file = fs::is_regular_file(path, error);
  const uint64_t size = is_file ? fs::file_size(path, error) : 0;
  std::string bytes(size <= kPluginFileBytesMax ? size : 0, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!is_file || error || size > kPluginFileBytesMax ||
      !file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
    return absl::NotFoundError(
        absl::StrCat(path, ": found no readable file of at most ", kPluginFileBytesMax, " bytes"));
  }
  return bytes;
}

absl::Status write_whole_file(const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  if (file) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(path, ": cannot be written"));
}

absl::Status write_package(const std::string& folder, const Outcome& outcome) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (fs::exists(fs::path(folder) / kSums, error)) {
    return absl::AlreadyExistsError(absl::StrCat(folder, ": holds a package already"));
  }
  const std::string texts[] = {to_json(outcome), to_junit(outcome), to_text(outcome)};
  std::string sums;
  for (size_t i = 0; i < std::size(texts); ++i) {
    const absl::Status status = write_whole_file(absl::StrCat(folder, "/", kFiles[i]), texts[i]);
    if (!status.ok()) return status;
    absl::StrAppend(&sums, sha256_hex(texts[i]), "  ", kFiles[i], "\n");
  }
  return write_whole_file(absl::StrCat(folder, "/", kSums), sums);
}

absl::Status verify_package(const std::string& folder, const std::string& plugin) {
  if (const absl::Status status = check_sums(folder); !status.ok()) return status;
  const absl::StatusOr<std::string> text = read_whole_file(folder + "/result.json");
  if (!text.ok()) return text.status();
  const nlohmann::json result = nlohmann::json::parse(*text, nullptr, false);
  try {
    std::set<std::string> versions;
    for (const nlohmann::json& run : result.at("runs")) {
      versions.insert(run.value("mri", ""));
      const absl::Status status = check_run(run, result.at("plugin").at("kind"));
      if (!status.ok()) return status;
    }
    if (versions != std::set<std::string>{"1.0", "1.1"})
      return bad("runs at MRI 1.0 and 1.1 are not both there");
    if (!result.at("passed")) return bad("result.json says that the plugin did not pass");
    if (plugin.empty()) return absl::OkStatus();
    const absl::StatusOr<std::string> bytes = read_whole_file(plugin);
    if (!bytes.ok()) return bytes.status();
    if (sha256_hex(*bytes) == result.at("plugin").at("sha256")) return absl::OkStatus();
    return bad(absl::StrCat(plugin, " is not the file that was tested: another SHA-256"));
  } catch (const nlohmann::json::exception& e) {
    return bad(absl::StrCat("result.json is not what mri-conform writes: ", e.what()));
  }
}

}  // namespace varve::conform
