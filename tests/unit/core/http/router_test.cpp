#include "core/http/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace varve::http {
namespace {

TEST(RouterTest, DecodesOnlyWhatIsWellFormed) {
  EXPECT_EQ(percent_decoded("a%41%2f+"), "aA/+");
  EXPECT_EQ(percent_decoded("a+b%2B", true), "a b+");
  EXPECT_EQ(percent_decoded("%C3%A9"), "é");
  for (const char* bad : {"%", "%4", "%zz", "%00", "%1f", "%7F", "%C0%AF", "%E0%80%AF", "%ED%A0%80",
                          "%FF", "%F8%88%80%80%80", "%C3", "%%41", "% 41", "%+1"}) {
    EXPECT_EQ(percent_decoded(bad), std::nullopt) << bad;
  }
}

TEST(RouterTest, ParsesTargets) {
  const auto target = parse_target("/v1/a%2Fb/c?x=1&y=a+b&flag&&z=%26");
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_THAT(target->segments, testing::ElementsAre("v1", "a/b", "c"));
  EXPECT_EQ(target->path, "/v1/a/b/c");
  EXPECT_THAT(target->query,
              testing::ElementsAre(testing::Pair("flag", ""), testing::Pair("x", "1"),
                                   testing::Pair("y", "a b"), testing::Pair("z", "&")));
  for (const char* bad : {"", "*", "v1", "http://host/", "/..", "/a/%2e%2e/b", "/./a", "/%00",
                          "/%0a", "/a?x=%", "/a?x=1&x=2", "/%c0%ae%c0%ae/etc"}) {
    EXPECT_FALSE(parse_target(bad).ok()) << bad;
  }
}

Route route(std::string method, std::string pattern) {
  return {std::move(method), std::move(pattern), Scope::kPublic, nullptr};
}

TEST(RouterTest, PrefersFixedSegments) {
  const auto router = Router::make({route("GET", "/a/{x}"), route("GET", "/a/b"),
                                    route("POST", "/{y}/b"), route("DELETE", "/a/{x}/c/{z}")});
  ASSERT_TRUE(router.ok());
  const auto find = [&](const char* method, const char* target) {
    return router->find(method, *parse_target(target));
  };
  EXPECT_EQ(find("GET", "/a/b").route->pattern, "/a/b");
  EXPECT_EQ(find("HEAD", "/a/b").route->pattern, "/a/b");
  EXPECT_EQ(find("GET", "/a/bb").path_values.at("x"), "bb");
  EXPECT_EQ(find("POST", "/a/b").route->pattern, "/{y}/b");
  EXPECT_EQ(find("POST", "/a/b").allow, "GET, HEAD, OPTIONS, POST");
  EXPECT_EQ(find("DELETE", "/a/1/c/2").path_values.size(), 2u);
  EXPECT_EQ(find("PUT", "/a/b").route, nullptr);
  for (const char* none : {"/", "/a", "/a/", "/a/b/", "/A/b/c", "//a/b"}) {
    EXPECT_EQ(find("GET", none).allow, "") << none;
  }
}

}  // namespace
}  // namespace varve::http
