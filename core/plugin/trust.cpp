#include "core/plugin/trust.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/file.h"
#include "core/plugin/refusal.h"

namespace varve {
namespace {

absl::Status bad_hex(const Setting& setting, std::string_view key, const std::string& text,
                     const char* expected) {
  return absl::InvalidArgumentError(absl::StrCat(setting.where, ": ", std::string(key), ": found ",
                                                 varve::quoted(text), "; expected ", expected));
}

absl::Status check_pin(const std::string& path, const std::string& sha256, const Trust& trust) {
  const auto& pins = trust.sha256;
  if (pins.empty() && trust.level != TrustLevel::kHash) return absl::OkStatus();
  if (std::find(pins.begin(), pins.end(), sha256) != pins.end()) return absl::OkStatus();
  return refused({"MRI-E022", path, "SHA-256",
                  pins.empty() ? "a pin (plugins.trust = \"hash\")" : absl::StrJoin(pins, " or "),
                  sha256,
                  "If this file is meant, add its hash to the key sha256 of the plugin's table; "
                  "nothing of it has run."});
}

absl::Status check_signature(const std::string& path, std::string_view bytes, const Trust& trust) {
  if (trust.level != TrustLevel::kSignature) return absl::OkStatus();
  const std::string name = path + ".sig";
  const auto refuse = [&](const std::string& has) {
    return refused({"MRI-E023", path, "signature",
                    absl::StrCat("one by a key of plugins.signers in ", name), has,
                    "varve plugin sign makes one; nothing of the library has run."});
  };
  const absl::StatusOr<std::string> signature = read_file(name, kEd25519SignatureBytes);
  if (!signature.ok()) return refuse(std::string(signature.status().message()));
  for (const Ed25519Key& key : trust.signers) {
    if (ed25519_verify(key, bytes, *signature)) return absl::OkStatus();
  }
  return refuse("one of another key, or of other bytes");
}

}  // namespace

absl::StatusOr<Trust> trust_of(const Profile& profile, std::string_view table) {
  Trust trust;
  const std::string& level = profile.text("plugins", "trust");
  if (level == "hash") trust.level = TrustLevel::kHash;
  if (level == "signature") trust.level = TrustLevel::kSignature;
  const Setting& signers = *profile.find("plugins", "signers");
  for (const std::string& text : std::get<std::vector<std::string>>(signers.value)) {
    const std::optional<Ed25519Key> key = ed25519_key(text);
    if (!key.has_value()) {
      return bad_hex(signers, "plugins.signers", text,
                     "a public key, 64 hex digits, as varve plugin sign prints it");
    }
    trust.signers.push_back(*key);
  }
  if (trust.level == TrustLevel::kSignature && trust.signers.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(profile.find("plugins", "trust")->where,
                     ": plugins.trust: found \"signature\" and no plugins.signers; expected at "
                     "least one public key"));
  }
  const Setting* pins = profile.find(table, "sha256");
  if (pins == nullptr) return trust;
  for (const std::string& text : std::get<std::vector<std::string>>(pins->value)) {
    // A pin and a public key look alike.
    if (!ed25519_key(text).has_value()) {
      return bad_hex(*pins, absl::StrCat(std::string(table), ".sha256"), text,
                     "64 hex digits, as sha256sum prints them");
    }
    trust.sha256.push_back(absl::AsciiStrToLower(text));
  }
  return trust;
}

absl::Status check_trusted(const std::string& path, std::string_view bytes,
                           const std::string& sha256, const Trust& trust) {
  if (const absl::Status status = check_pin(path, sha256, trust); !status.ok()) return status;
  return check_signature(path, bytes, trust);
}

}  // namespace varve
