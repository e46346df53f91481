#include "core/route/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace varve {
namespace {

using testing::HasSubstr;

// SHA-256 of "vip key", "batch key".
constexpr char kVipDigest[] = "70b78311a0ad91753778ba9c2f8901e71c9744feecf7895b02a1d1dad24ff888";
constexpr char kBatchDigest[] = "6991d4fb51b49fd9a4e83ea124e9b01bee7d031c1e9f95594bccab238cd4ef55";

class ApiKeysTest : public testing::Test {
 protected:
  ApiKeysTest() {
    path_ = testing::TempDir() + "keys-XXXXXX";
    close(mkstemp(path_.data()));
  }
  ~ApiKeysTest() override { unlink(path_.c_str()); }

  absl::StatusOr<std::shared_ptr<const ApiKeys>> load(const std::string& text) {
    std::ofstream(path_) << text;
    return ApiKeys::load(path_, {"standard", "vip", "batch"});
  }
  std::string error_of(const std::string& text) {
    const auto keys = load(text);
    return keys.ok() ? "no error" : std::string(keys.status().message());
  }
  static std::string key(const std::string& name, const std::string& digest,
                         const std::string& more = "") {
    return "[key." + name + "]\nsha256 = \"" + digest +
           "\"\ntenant = \"team\"\nclass = \"standard\"\n" + more;
  }

  std::string path_;
};

TEST_F(ApiKeysTest, FindsWhatAKeyMayDo) {
  const auto keys = load(
      "[key.boss]\nsha256 = \"" + std::string(kVipDigest) +
      "\"\ntenant = \"team-a\"\nclass = \"vip\"\nscope = \"admin\"\nrequests_per_minute = 60\n" +
      key("night", kBatchDigest, "tiers = [\"flex:batch\", \"priority:vip\"]\n"));
  ASSERT_TRUE(keys.ok()) << keys.status();
  const auto boss = (*keys)->find("vip key");
  ASSERT_TRUE(boss.ok()) << boss.status();
  EXPECT_EQ(boss->key_id, "boss");
  EXPECT_EQ(boss->tenant, "team-a");
  EXPECT_EQ(boss->class_name, "vip");
  EXPECT_EQ(boss->scope, Scope::kAdmin);
  EXPECT_EQ((*keys)->limits("boss").requests_per_minute, 60u);
  EXPECT_EQ((*keys)->limits("boss").tokens_per_minute, 0u);
  const auto night = (*keys)->find("batch key");
  ASSERT_TRUE(night.ok());
  EXPECT_EQ(night->scope, Scope::kInference);
  EXPECT_EQ(night->tier_classes, (std::vector<std::string>{"batch", "vip"}));
}

TEST_F(ApiKeysTest, RefusesOtherKeys) {
  const auto keys = load(key("a", kVipDigest));
  ASSERT_TRUE(keys.ok()) << keys.status();
  for (const std::string& wrong :
       {std::string(), std::string("vip ke"), std::string("vip key "), std::string(kVipDigest),
        std::string("vip key\0", 8), std::string(1 << 20, 'x')}) {
    EXPECT_EQ((*keys)->find(wrong).status().code(), absl::StatusCode::kUnauthenticated);
  }
}

TEST_F(ApiKeysTest, TiersOnlyAsTheKeyAllows) {
  const auto keys = load(key("a", kVipDigest, "tiers = [\"priority:vip\"]\n"));
  ASSERT_TRUE(keys.ok()) << keys.status();
  const Identity who = *(*keys)->find("vip key");
  for (const char* own : {"", "auto", "default"})
    EXPECT_EQ(*(*keys)->class_for_tier(who, own), "standard");
  EXPECT_EQ(*(*keys)->class_for_tier(who, "priority"), "vip");
  const auto flex = (*keys)->class_for_tier(who, "flex");
  EXPECT_EQ(flex.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(flex.status().message()), HasSubstr("auto, default, priority"));
  Identity gone = who;
  gone.key_id = "gone";
  EXPECT_EQ((*keys)->class_for_tier(gone, "priority").status().code(),
            absl::StatusCode::kPermissionDenied);
}

TEST_F(ApiKeysTest, ErrorsNameTheLine) {
  EXPECT_EQ(error_of(key("a", kVipDigest, "tenent = \"x\"\n")),
            path_ +
                ":5:1: found unknown key \"tenent\"; expected a key of [key.a]; did you mean "
                "\"tenant\"?");
  EXPECT_EQ(error_of(key("a", "abc")),
            path_ +
                ":1:6: [key.a]: found no sha256 of 64 hex digits; expected what printf %s "
                "\"$KEY\" | sha256sum writes");
  EXPECT_EQ(error_of(key("a", kVipDigest) + key("b", kVipDigest)),
            path_ + ":5:6: [key.b]: found the sha256 of [key.a]; expected another key");
  EXPECT_THAT(error_of(key("a", kVipDigest, "scope = \"root\"\n")),
              HasSubstr(":5:1: key.a.scope: found the string \"root\"; expected one of inference, "
                        "admin"));
  EXPECT_THAT(error_of(key("a", kVipDigest, "requests_per_minute = -1\n")), HasSubstr(":5:1: "));
  EXPECT_THAT(error_of(key("a", kVipDigest, "requests_per_minute = 2024-01-01\n")),
              HasSubstr(":5:1: "));
  EXPECT_THAT(error_of(key("a", kVipDigest, "tiers = [\"vip\", 1]\n")), HasSubstr(":5:1: "));
  EXPECT_THAT(error_of(key("a", kVipDigest, "tiers = [\"priority:vp\"]\n")),
              HasSubstr("did you mean \"vip\"?"));
  EXPECT_THAT(error_of(key("a", kVipDigest, "tiers = [\"gold\"]\n")),
              HasSubstr("found the tier \"gold\"; expected service_tier:class"));
  EXPECT_THAT(error_of(key("a", kVipDigest, "tiers = [\"auto:vip\"]\n")), HasSubstr("auto:vip"));
  EXPECT_THAT(error_of(key("a", kVipDigest, "tiers = [\"flex:vip\", \"flex:batch\"]\n")),
              HasSubstr("twice"));
  EXPECT_THAT(error_of("[key.a\n"), HasSubstr(":1:7: found a syntax error"));
  EXPECT_THAT(error_of("[kee.a]\n"), HasSubstr(":1:2: found \"kee\""));
  EXPECT_THAT(error_of("key = 1\n"), HasSubstr("[key.NAME]"));
  EXPECT_THAT(error_of("[key]\na = 1\n"), HasSubstr("[key.NAME]"));
  EXPECT_THAT(error_of("[key.\"a\\n\\u001b[31m\"]\n"), HasSubstr("[key.NAME]"));
}

TEST_F(ApiKeysTest, ErrorsNeverTellADigest) {
  for (const std::string& text :
       {key("a", kVipDigest) + key("b", kVipDigest), key("a", kVipDigest, "x = 1\n"),
        key("a", std::string(kVipDigest) + "0")})
    EXPECT_THAT(error_of(text), testing::Not(HasSubstr(std::string(kVipDigest).substr(0, 16))));
}

TEST_F(ApiKeysTest, RefusesUnsafeFiles) {
  ASSERT_TRUE(load(key("a", kVipDigest)).ok());
  chmod(path_.c_str(), 0666);
  EXPECT_THAT(error_of(key("a", kVipDigest)), HasSubstr("everybody may write"));
  chmod(path_.c_str(), 0600);
  EXPECT_THAT(error_of("#" + std::string(1 << 20, 'x')), HasSubstr("more than 1048576 bytes"));
  for (const char* path : {"/", "/nowhere/keys.toml", "/dev/zero"}) {
    const auto keys = ApiKeys::load(path, {"standard"});
    EXPECT_EQ(keys.status().code(), absl::StatusCode::kInvalidArgument) << path;
  }
}

class QuotasTest : public testing::Test {
 protected:
  bool take(uint64_t tokens, double second, const char* key = "k") {
    const absl::Status status =
        quotas_->take(key, limits_, tokens, absl::UnixEpoch() + absl::Seconds(second), &wait_);
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kResourceExhausted);
    return status.ok();
  }

  const std::unique_ptr<Quotas> quotas_ = Quotas::make();
  ApiKeys::Limits limits_;
  absl::Duration wait_;
};

TEST_F(QuotasTest, CountsRequestsPerKey) {
  limits_.requests_per_minute = 2;
  EXPECT_TRUE(take(1, 0));
  EXPECT_TRUE(take(1, 0));
  EXPECT_FALSE(take(1, 0));
  EXPECT_NEAR(absl::ToDoubleSeconds(wait_), 30, 1e-6);
  EXPECT_TRUE(take(1, 0, "other"));
  EXPECT_FALSE(take(1, 29));
  EXPECT_TRUE(take(1, 30.001));
  EXPECT_FALSE(take(1, 30.002));
}

TEST_F(QuotasTest, CountsTokensAndRefundsWhatWasNotUsed) {
  limits_.tokens_per_minute = 100;
  EXPECT_TRUE(take(90, 0));
  EXPECT_FALSE(take(20, 0));
  quotas_->refund("k", 50);
  EXPECT_TRUE(take(20, 0));
  quotas_->refund("k", 1000000);
  EXPECT_TRUE(take(100, 0));
  EXPECT_FALSE(take(1, 0));
  quotas_->refund("unknown", 1);
}

TEST_F(QuotasTest, ARefusedRequestTakesNothing) {
  limits_ = {10, 100};
  EXPECT_TRUE(take(90, 0));
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(take(50, 0));
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(take(1, 0));
  EXPECT_FALSE(take(1, 0));
}

// One that is larger than the whole limit waits for a full bucket, then leaves a debt.
TEST_F(QuotasTest, ALargeRequestIsNotLockedOut) {
  limits_.tokens_per_minute = 60;
  EXPECT_TRUE(take(120, 0));
  EXPECT_FALSE(take(1, 60));
  EXPECT_TRUE(take(1, 61.1));
}

TEST_F(QuotasTest, AClockThatGoesBackLocksNobodyOut) {
  limits_.requests_per_minute = 60;
  for (int i = 0; i < 60; ++i) EXPECT_TRUE(take(1, 1e9));
  EXPECT_FALSE(take(1, 0));
  EXPECT_TRUE(take(1, 1.001));
  for (int i = 0; i < 60; ++i) EXPECT_TRUE(take(1, 1e12)) << i;
  EXPECT_FALSE(take(1, 1e12));
}

TEST_F(QuotasTest, LimitsMayChange) {
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(take(1000000, 0));  // none yet
  limits_.tokens_per_minute = 10;
  EXPECT_TRUE(take(10, 0));
  EXPECT_FALSE(take(1, 0));
  limits_.tokens_per_minute = 20;
  EXPECT_TRUE(take(10, 0));
  EXPECT_FALSE(take(1, 0));
  limits_.tokens_per_minute = 5;
  EXPECT_FALSE(take(1, 0));
  limits_.tokens_per_minute = 0;
  EXPECT_TRUE(take(1000000, 0));
}

TEST_F(QuotasTest, StateIsBounded) {
  limits_.requests_per_minute = 1;
  for (int i = 0; i < 9000; ++i) EXPECT_TRUE(take(1, 0.001 * i, std::to_string(i).c_str()));
}

}  // namespace
}  // namespace varve
