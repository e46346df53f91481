// What a library must show before any of its code runs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/ed25519.h"
#include "core/config/profile.h"

namespace varve {

enum class TrustLevel {
  kNone,       // pins hold where there are some
  kHash,       // every library has a pin
  kSignature,  // every library has a signature; pins hold where there are some
};

struct Trust {
  TrustLevel level = TrustLevel::kNone;
  std::vector<std::string> sha256;  // pins, 64 lower-case hex digits each; empty: none
  std::vector<Ed25519Key> signers;  // public keys

  // The bytes that were checked are those to load, whatever happens to the file meanwhile.
  bool checks_bytes() const { return level != TrustLevel::kNone || !sha256.empty(); }
};

// [plugins] trust and signers, and the pins in the table of a plugin kind; a `table` that is no
// such kind has none. The error names the place.
absl::StatusOr<Trust> trust_of(const Profile& profile, std::string_view table);

// A refusal, MRI-E022 (hash) or MRI-E023 (signature), unless these bytes of the file at `path` are
// trusted. A signature is the file "<path>.sig": the 64 bytes of Ed25519 over the library's bytes.
absl::Status check_trusted(const std::string& path, std::string_view bytes,
                           const std::string& sha256, const Trust& trust);

}  // namespace varve
