#include "core/base/ed25519.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <algorithm>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"

namespace varve {
namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Context = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;
using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;

const unsigned char* data_of(std::string_view bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

// OpenSSL would ask at the terminal.
int no_passphrase(char*, int, int, void*) { return -1; }

}  // namespace

std::optional<Ed25519Key> ed25519_key(std::string_view hex) {
  Ed25519Key key;
  const auto is_digit = [](unsigned char c) { return absl::ascii_isxdigit(c); };
  if (hex.size() != 2 * key.size() || !std::all_of(hex.begin(), hex.end(), is_digit))
    return std::nullopt;
  const std::string bytes = absl::HexStringToBytes({hex.data(), hex.size()});
  std::copy(bytes.begin(), bytes.end(), key.begin());
  return key;
}

bool ed25519_verify(const Ed25519Key& key, std::string_view message, std::string_view signature) {
  const Key pkey(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, key.data(), key.size()),
                 EVP_PKEY_free);
  const Context context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  return pkey != nullptr && context != nullptr &&
         EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, pkey.get()) == 1 &&
         EVP_DigestVerify(context.get(), data_of(signature), signature.size(), data_of(message),
                          message.size()) == 1;
}

absl::StatusOr<Ed25519Signed> ed25519_sign(std::string_view pem, std::string_view message) {
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr), EVP_PKEY_free);
  Ed25519Key raw;
  size_t n_raw = raw.size();
  if (key == nullptr || EVP_PKEY_id(key.get()) != EVP_PKEY_ED25519 ||
      EVP_PKEY_get_raw_public_key(key.get(), raw.data(), &n_raw) != 1) {
    return absl::InvalidArgumentError(
        "found no private key of Ed25519 without passphrase; expected what openssl genpkey "
        "-algorithm ed25519 writes");
  }
  Ed25519Signed made;
  made.signature.resize(kEd25519SignatureBytes);
  size_t n = made.signature.size();
  const Context context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (context == nullptr ||
      EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) != 1 ||
      EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(made.signature.data()), &n,
                     data_of(message), message.size()) != 1) {
    return absl::InternalError("OpenSSL cannot sign");
  }
  made.public_key = absl::BytesToHexString({reinterpret_cast<const char*>(raw.data()), raw.size()});
  return made;
}

}  // namespace varve
