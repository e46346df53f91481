// varve plugin sign and verify: signatures of plugins' files, and what a profile trusts.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/ed25519.h"
#include "core/base/file.h"
#include "core/base/limits.h"
#include "core/plugin/library_file.h"
#include "tools/varve/cmd_plugin.h"

namespace varve::cli {
namespace {

constexpr uint64_t kKeyFileBytesMax = 1 << 16;

absl::StatusOr<std::string> read_named(const std::string& path, uint64_t bytes_max) {
  absl::StatusOr<std::string> bytes = read_file(path, bytes_max);
  if (bytes.ok()) return bytes;
  return absl::NotFoundError(absl::StrCat(path, ": found ", bytes.status().message()));
}

// The kind that the file's name begins with.
std::string kind_of(const std::string& path) {
  const std::string stem = std::filesystem::path(path).stem().string();
  return stem.substr(0, stem.find('-'));
}

}  // namespace

int plugin_sign(const CommandLine& line, const std::vector<std::string>& words) {
  if (words.size() != 3)
    return line.usage_error("expected 'sign', a file with a private key, and a plugin's file");
  const absl::StatusOr<std::string> key = read_named(words[1], kKeyFileBytesMax);
  if (!key.ok()) return report(key.status(), kExitUsage);
  const absl::StatusOr<std::string> bytes = read_named(words[2], kPluginFileBytesMax);
  if (!bytes.ok()) return report(bytes.status(), kExitUsage);
  const absl::StatusOr<Ed25519Signed> made = ed25519_sign(*key, *bytes);
  if (!made.ok()) {
    return report(
        absl::Status(made.status().code(), absl::StrCat(words[1], ": ", made.status().message())),
        kExitUsage);
  }
  const std::string name = words[2] + ".sig";
  std::ofstream file(name, std::ios::binary | std::ios::trunc);
  if (!file.write(made->signature.data(), static_cast<std::streamsize>(made->signature.size())) ||
      !file.flush()) {
    return report(absl::PermissionDeniedError(absl::StrCat(name, ": cannot be written")),
                  kExitFailure);
  }
  if (line.json()) {
    std::cout << nlohmann::ordered_json{{"signature", name}, {"signer", made->public_key}}.dump(2)
              << "\n";
  } else {
    std::cout << name << "\nsigners = [\"" << made->public_key << "\"]\n";
  }
  return kExitOk;
}

int plugin_verify(const CommandLine& line, const std::vector<std::string>& words) {
  if (words.size() < 2) return line.usage_error("expected 'verify' and a plugin's file");
  const absl::StatusOr<Profile> profile = line.profile();
  if (!profile.ok()) return report(profile.status(), kExitUsage);
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  bool is_bad = false;
  for (size_t i = 1; i < words.size(); ++i) {
    const absl::StatusOr<Trust> trust = trust_of(*profile, kind_of(words[i]));
    if (!trust.ok()) return report(trust.status(), kExitUsage);
    const std::string path = std::filesystem::absolute(words[i]).lexically_normal().string();
    const absl::StatusOr<LibraryFile> file = read_library(path, *trust);
    is_bad = is_bad || !file.ok();
    if (line.json()) {
      json.push_back({{"file", words[i]}});
      if (file.ok()) json.back()["sha256"] = file->sha256;
      if (!file.ok()) json.back()["refused"] = std::string(file.status().message());
    } else if (file.ok()) {
      std::cout << absl::StrFormat("%s  %s  trusted\n", file->sha256, words[i]);
    } else {
      std::cout << "refused: " << file.status().message() << "\n";
    }
  }
  if (line.json())
    std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  return is_bad ? kExitFailure : kExitOk;
}

}  // namespace varve::cli
