#include "core/base/ed25519.h"

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace varve {
namespace {

// RFC 8032, 7.1, test 1 and 2.
constexpr char kSecret[] = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
constexpr char kPublic[] = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
constexpr char kSignature[] =
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b4"
    "6bd25bf5f0595bbe24655141438e7a100b";
constexpr char kOtherPublic[] = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c";

std::string pem_of(const std::string& label, const std::string& der_hex) {
  return absl::StrCat("-----BEGIN ", label, "-----\n",
                      absl::Base64Escape(absl::HexStringToBytes(der_hex)), "\n-----END ", label,
                      "-----\n");
}

const std::string kPem =
    pem_of("PRIVATE KEY", std::string("302e020100300506032b657004220420") + kSecret);

TEST(Ed25519, SignsAsTheStandardDoes) {
  const auto made = ed25519_sign(kPem, "");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(absl::BytesToHexString(made->signature), kSignature);
  EXPECT_EQ(made->public_key, kPublic);
}

TEST(Ed25519, AcceptsOnlyThisMessageKeyAndSignature) {
  const Ed25519Key key = *ed25519_key(kPublic);
  std::string signature = absl::HexStringToBytes(kSignature);
  EXPECT_TRUE(ed25519_verify(key, "", signature));
  EXPECT_FALSE(ed25519_verify(key, "x", signature));
  EXPECT_FALSE(ed25519_verify(*ed25519_key(kOtherPublic), "", signature));
  EXPECT_FALSE(ed25519_verify(key, "", signature + "x"));
  EXPECT_FALSE(ed25519_verify(key, "", ""));
  signature[5] = static_cast<char>(signature[5] ^ 1);
  EXPECT_FALSE(ed25519_verify(key, "", signature));
}

TEST(Ed25519, RefusesOtherKeys) {
  for (const std::string& pem :
       {std::string(), std::string("no key"), pem_of("PRIVATE KEY", "3003020100"),
        pem_of("ENCRYPTED PRIVATE KEY", "3003020100")})
    EXPECT_EQ(ed25519_sign(pem, "").status().code(), absl::StatusCode::kInvalidArgument) << pem;
  EXPECT_FALSE(ed25519_key(""));
  EXPECT_FALSE(ed25519_key(std::string(63, 'a') + "g"));
  EXPECT_FALSE(ed25519_key(std::string(66, 'a')));
}

}  // namespace
}  // namespace varve
