#include "core/metrics/timings_text.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace varve {
namespace {

mri_timings parts(uint64_t local, uint64_t sparse, uint64_t summary, uint64_t kv, uint64_t other) {
  mri_timings t{};
  t.local_attn_ns = local;
  t.sparse_attn_ns = sparse;
  t.summary_attn_ns = summary;
  t.kv_cache_ns = kv;
  t.other_ns = other;
  return t;
}

TEST(TimingsText, SharesSumToOne) {
  const TimingShares s = timing_shares(parts(10, 20, 30, 15, 25));
  EXPECT_DOUBLE_EQ(s.local, 0.10);
  EXPECT_DOUBLE_EQ(s.sparse, 0.20);
  EXPECT_DOUBLE_EQ(s.summary, 0.30);
  EXPECT_DOUBLE_EQ(s.kv_cache, 0.15);
  EXPECT_DOUBLE_EQ(s.other, 0.25);
}

TEST(TimingsText, NothingTimedHasNoSharesAndNoAdvice) {
  EXPECT_EQ(timing_shares({}).other, 0);
  EXPECT_EQ(sparse_hit_rate({}), 0);
  EXPECT_TRUE(timings_advice({}).empty());
}

TEST(TimingsText, HugePartsDoNotWrap) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  EXPECT_DOUBLE_EQ(timing_shares(parts(kMost, kMost, 0, 0, 0)).local, 0.5);
}

TEST(TimingsText, JsonHasMillisecondsAndChoices) {
  mri_timings t = parts(1'500'000, 2'000'000, 250'000, 0, 7'000'000);
  t.n_choices = 4;
  t.blocks_chosen = 200;
  t.blocks_chosen_again = 150;
  t.blocks_min = 42;
  t.blocks_max = 64;
  EXPECT_EQ(timings_json(t), nlohmann::json::parse(R"({
      "local_attn_ms": 1.5, "sparse_attn_ms": 2.0, "summary_attn_ms": 0.25, "kv_cache_ms": 0.0,
      "other_ms": 7.0, "sparse_attn_hit_rate": 0.75,
      "topk_dynamics": {"mean": 50.0, "min": 42, "max": 64, "reused": 150}})"));
}

TEST(TimingsText, FewestBlocksMeanNothingWithoutChoices) {
  mri_timings t{};
  t.blocks_min = 99;
  EXPECT_EQ(timings_json(t)["topk_dynamics"]["min"], 0);
}

TEST(TimingsText, SumKeepsFewestAndMostOfThoseThatChose) {
  mri_timings chose = parts(1, 2, 3, 4, 5);
  chose.n_tokens = 6;
  chose.n_choices = 2;
  chose.blocks_chosen = 20;
  chose.blocks_min = 8;
  chose.blocks_max = 12;
  mri_timings sum{};
  add_timings(parts(1, 0, 0, 0, 0), &sum);  // read densely: no choice
  add_timings(chose, &sum);
  EXPECT_EQ(sum.blocks_min, 8u);
  add_timings(parts(1, 0, 0, 0, 0), &sum);
  chose.blocks_min = 3;
  add_timings(chose, &sum);
  EXPECT_EQ(sum.blocks_min, 3u);
  EXPECT_EQ(sum.blocks_max, 12u);
  EXPECT_EQ(sum.local_attn_ns, 4u);
  EXPECT_EQ(sum.other_ns, 10u);
  EXPECT_EQ(sum.n_tokens, 12u);
  EXPECT_EQ(sum.blocks_chosen, 40u);
}

TEST(TimingsText, EachRuleHasItsAdvice) {
  EXPECT_TRUE(timings_advice(parts(60, 0, 0, 0, 40)).empty()) << "60 % is not more than 60 %";
  auto advice = timings_advice(parts(61, 0, 0, 0, 39));
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_NE(advice[0].find("61 %"), std::string::npos) << advice[0];
  EXPECT_NE(advice[0].find("window_tokens"), std::string::npos) << advice[0];

  EXPECT_TRUE(timings_advice(parts(0, 50, 0, 0, 50)).empty());
  advice = timings_advice(parts(0, 51, 0, 0, 49));
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_NE(advice[0].find("index"), std::string::npos) << advice[0];

  EXPECT_TRUE(timings_advice(parts(0, 0, 0, 70, 30)).empty());
  advice = timings_advice(parts(0, 0, 0, 71, 29));
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_NE(advice[0].find("hot_tokens"), std::string::npos) << advice[0];
}

}  // namespace
}  // namespace varve
