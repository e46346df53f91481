#include "core/base/sha256.h"

#include <gtest/gtest.h>

namespace varve {
namespace {

TEST(Sha256, IsTheKnownOne) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace varve
