// Ed25519 signatures (RFC 8032) over whole messages, with OpenSSL.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace varve {

using Ed25519Key = std::array<uint8_t, 32>;  // a public key
inline constexpr size_t kEd25519SignatureBytes = 64;

// From 64 hex digits.
std::optional<Ed25519Key> ed25519_key(std::string_view hex);

// False for anything but a signature of exactly this message by this key.
bool ed25519_verify(const Ed25519Key& key, std::string_view message, std::string_view signature);

struct Ed25519Signed {
  std::string signature;   // kEd25519SignatureBytes bytes
  std::string public_key;  // 64 hex digits
};
// `pem` is a private key without passphrase, as `openssl genpkey -algorithm ed25519` writes.
absl::StatusOr<Ed25519Signed> ed25519_sign(std::string_view pem, std::string_view message);

}  // namespace varve
