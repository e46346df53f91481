#include "core/base/sha256.h"

#include <openssl/evp.h>

#include <new>

#include "absl/strings/escaping.h"

namespace varve {

Sha256 sha256(std::string_view bytes) {
  Sha256 digest;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr) != 1)
    throw std::bad_alloc();
  return digest;
}

std::string sha256_hex(std::string_view bytes) {
  const Sha256 digest = sha256(bytes);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

}  // namespace varve
