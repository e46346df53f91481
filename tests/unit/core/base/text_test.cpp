#include "core/base/text.h"

#include <gtest/gtest.h>

namespace varve {
namespace {

TEST(CleanText, KeepsWellFormedUtf8) {
  EXPECT_EQ(clean_text("größer → 𝛼\tb\n", 100), "größer → 𝛼\tb\n");
}

TEST(CleanText, ReplacesEachByteThatDoesNotBelong) {
  EXPECT_EQ(clean_text("a\xff\x80z", 100), "a??z");
  EXPECT_EQ(clean_text("\xc0\xaf", 100), "??") << "overlong";
  EXPECT_EQ(clean_text("\xe0\x80\x80", 100), "???") << "overlong";
  EXPECT_EQ(clean_text("\xed\xa0\x80", 100), "???") << "surrogate";
  EXPECT_EQ(clean_text("\xf4\x90\x80\x80", 100), "????") << "beyond U+10FFFF";
  EXPECT_EQ(clean_text("\xe2\x82", 100), "??") << "cut character";
  EXPECT_EQ(clean_text(std::string_view("\0\x1b[31m\x7f", 7), 100), "??[31m?");
}

TEST(CleanText, NeverCutsInsideACharacter) {
  EXPECT_EQ(clean_text("aé", 2), "a");
  EXPECT_EQ(clean_text("aé", 3), "aé");
  EXPECT_EQ(clean_text("anything", 0), "");
}

TEST(CleanText, PrefixEndsBeforeTheFirstBadByte) {
  EXPECT_EQ(clean_prefix("ok\xff"), 2u);
  EXPECT_EQ(clean_prefix("é"), 2u);
  EXPECT_EQ(clean_prefix(""), 0u);
}

TEST(Utf8Prefix, EndsBeforeTheFirstByteThatIsNoText) {
  EXPECT_EQ(utf8_prefix("é\r\x1b\x7f"), 5u) << "control characters are well-formed";
  EXPECT_EQ(utf8_prefix(std::string_view("a\0b", 3)), 3u);
  EXPECT_EQ(utf8_prefix("ok\xff"), 2u);
  EXPECT_EQ(utf8_prefix("a\xe2\x82"), 1u);
  EXPECT_EQ(utf8_prefix(""), 0u);
}

TEST(VersionText, IsMajorDotMinor) {
  EXPECT_EQ(version_text(0x10001), "1.1");
  EXPECT_EQ(version_text(0x20000), "2.0");
}

}  // namespace
}  // namespace varve
