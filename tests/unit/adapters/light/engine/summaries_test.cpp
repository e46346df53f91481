// Summaries of segments: when they are made, what is refused, and what becomes of those of which
// nothing else is left.
#include <gmock/gmock.h>

#include <limits>

#include "mri/sdk/error.hpp"
#include "tests/unit/adapters/light/engine/cache_fixture.h"

namespace varve::light {
namespace {

using testing::HasSubstr;

class SummariesTest : public CacheFixture {
 protected:
  SummariesTest() {
    double_.pairs_max = 4;
    demote_all(MRI_TIER_COLD);
  }

  // Two segments and a bit, all that may be moved cold.
  void fill(KvCache& cache) {
    write(cache, 2 * kSegment + 40);
    cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
  }
};

TEST_F(SummariesTest, ExistBeforeTheOnlyCopyGoes) {
  options_.backing = BackingKind::kNone;
  KvCache cache(store(), 0, {});
  fill(cache);
  ASSERT_EQ(cache.summaries().size(), 2u);
  EXPECT_EQ(cache.summaries()[1].position, kSegment);
  EXPECT_EQ(cache.summaries()[1].n_tokens, kSegment);
  EXPECT_EQ(cache.usage().cold_tokens, 2 * kSegment - kBlock);  // the sinks stay hot
  EXPECT_EQ(cache.usage().warm_tokens, kBlock);                 // of the unfinished segment
}

TEST_F(SummariesTest, ABlockWithoutPagesPointsToNoMemory) {
  options_.backing = BackingKind::kNone;
  options_.spare_bytes_max = 0;
  double_.decide = nullptr;
  KvCache cache(store(), 0, {});
  write(cache, kSegment);
  const uint8_t* index = cache.blocks()[5].index;
  demote_all(MRI_TIER_COLD);
  cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
  const mri_kv_block& block = cache.blocks()[5];
  ASSERT_NE(block.flags & MRI_BLOCK_EVICTED, 0u);
  EXPECT_EQ(block.body, nullptr);
  EXPECT_NE(block.index, nullptr);
  EXPECT_NE(block.index, index);
}

TEST_F(SummariesTest, WhatLivesInASummaryAloneGoesWithItOrStays) {
  options_.backing = BackingKind::kNone;
  KvCache cache(store(), 0, {});
  fill(cache);
  const mri_token_range inside{kSegment + 64, 32}, whole{kSegment, kSegment};
  for (const uint32_t granularity : {MRI_EVICT_TOKEN, MRI_EVICT_BLOCK, MRI_EVICT_BLOCK_AWARE}) {
    const KvCache::Evicted refused = cache.evict(std::span(&inside, 1), granularity);
    EXPECT_EQ(refused.n_tokens, 0u) << granularity;
    EXPECT_EQ(refused.n_refused, 1u) << granularity;
    EXPECT_EQ(cache.summaries().size(), 2u) << granularity;
  }
  const KvCache::Evicted gone = cache.evict(std::span(&whole, 1), MRI_EVICT_BLOCK);
  EXPECT_EQ(gone.n_tokens, kSegment);
  EXPECT_EQ(gone.n_refused, 0u);
  EXPECT_GT(gone.bytes, 0u);
  ASSERT_EQ(cache.summaries().size(), 1u);
  EXPECT_EQ(cache.blocks()[3].segment, 0u);
  EXPECT_EQ(cache.usage().cold_tokens, kSegment - kBlock);
}

TEST_F(SummariesTest, IsMadeAnewWithoutWhatIsEvicted) {
  KvCache cache(store(), 0, {});
  fill(cache);
  uint32_t n_tokens = 0;
  double_.make = [&](const mri_summary_make_req& req, mri_summary_make_rsp& rsp) {
    n_tokens = req.n_tokens;
    rsp.n_pairs = 0;
  };
  const mri_token_range range{kSegment + 64, 35};
  EXPECT_EQ(cache.evict(std::span(&range, 1), MRI_EVICT_TOKEN).n_tokens, 35u);
  ASSERT_EQ(cache.summaries().size(), 1u);
  cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
  EXPECT_EQ(n_tokens, kSegment - 35);
  ASSERT_EQ(cache.summaries().size(), 2u);
  EXPECT_EQ(cache.summaries()[cache.blocks()[40].segment].position, kSegment);
  EXPECT_EQ(cache.summaries()[cache.blocks()[5].segment].position, 0u);
}

TEST_F(SummariesTest, AnEmptySegmentHasNone) {
  KvCache cache(store(), 0, {});
  fill(cache);
  const mri_token_range range{kSegment, kSegment};
  cache.evict(std::span(&range, 1), MRI_EVICT_BLOCK);
  const uint64_t before = store().pool().used_bytes();
  cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
  EXPECT_EQ(cache.summaries().size(), 1u);
  EXPECT_EQ(store().pool().used_bytes(), before);
}

TEST_F(SummariesTest, AHoldKeepsTheSegmentWhole) {
  options_.backing = BackingKind::kNone;
  KvCache cache(store(), 0, {});
  write(cache, kSegment - kBlock);
  cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
  cache.hold();
  write(cache, kSegment);
  cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
  EXPECT_TRUE(cache.summaries().empty());
  cache.truncate(kSegment - kBlock);
  cache.release_hold();
  EXPECT_EQ(cache.usage().warm_tokens + cache.usage().hot_tokens, kSegment - kBlock);
  for (const mri_kv_block& block : cache.blocks()) EXPECT_NE(block.body, nullptr);
}

// A long prompt gets its summaries with the step that makes them due, small steps bit by bit; in
// the end they are the same.
TEST_F(SummariesTest, SmallStepsMakeThemBitByBit) {
  demote_all(MRI_TIER_WARM);
  KvCache cache(store(), 0, {});
  write(cache, kSegment);
  double_.decide = nullptr;
  cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
  demote_all(MRI_TIER_WARM);
  std::vector<int> made;
  while (cache.summaries().empty() && made.size() < 20) {
    write(cache, kBlock);
    double_.n_made = 0;
    cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
    made.push_back(double_.n_made);
  }
  EXPECT_EQ(made, std::vector<int>(kLayers * kHeads, 1));  // a page each
  KvCache whole(store(), 0, {});
  write(whole, 2 * kSegment);
  double_.n_made = 0;
  whole.apply_policy(MRI_TIER_WHY_APPEND, 0);
  EXPECT_EQ(whole.summaries().size(), 2u);
  EXPECT_EQ(double_.n_made, 2 * int{kLayers * kHeads});
}

TEST_F(SummariesTest, AnUnfinishedOneStartsAnewWhenItsTokensGo) {
  demote_all(MRI_TIER_WARM);
  KvCache cache(store(), 0, {});
  double_.decide = nullptr;
  write(cache, kSegment);
  cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
  demote_all(MRI_TIER_WARM);
  write(cache, kBlock);
  cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
  ASSERT_TRUE(cache.summaries().empty());
  std::vector<uint32_t> n_tokens;
  double_.make = [&](const mri_summary_make_req& req, mri_summary_make_rsp& rsp) {
    n_tokens.push_back(req.n_tokens);
    rsp.n_pairs = 0;
  };
  const mri_token_range range{64, 3};
  EXPECT_EQ(cache.evict(std::span(&range, 1), MRI_EVICT_TOKEN).n_tokens, 3u);
  for (uint32_t i = 0; i < kLayers * kHeads; ++i) {
    write(cache, kBlock);
    cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
  }
  EXPECT_EQ(n_tokens, std::vector<uint32_t>(kLayers * kHeads, kSegment - kBlock - 3));
  EXPECT_EQ(cache.summaries().size(), 1u);
}

TEST_F(SummariesTest, APluginThatGivesNoNumbersIsNotAskedAgain) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    double_.n_made = 0;
    double_.log.clear();
    double_.make = [bad](const mri_summary_make_req&, mri_summary_make_rsp& rsp) {
      rsp.n_pairs = 2;
      rsp.log_count[0] = rsp.log_count[1] = 0;
      rsp.v[kDim + 3] = bad;
    };
    KvCache cache(store(), 0, {});
    fill(cache);
    EXPECT_TRUE(cache.summaries().empty());
    EXPECT_GT(cache.usage().cold_tokens, 1000u);
    ASSERT_FALSE(double_.log.empty());
    EXPECT_THAT(double_.log[0], HasSubstr("finite"));
    const int n_made = double_.n_made;
    write(cache, kBlock);
    cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
    EXPECT_EQ(double_.n_made, n_made);
  }
  EXPECT_EQ(store().pool().used_bytes(), 0u);
}

TEST_F(SummariesTest, MorePairsThanTokensAreRefused) {
  for (const uint32_t pairs : {kSegment + 1, UINT32_MAX}) {
    double_.pairs_max = pairs;
    double_.n_made = 0;
    KvCache cache(store(), 0, {});
    fill(cache);
    EXPECT_EQ(double_.n_made, 0);
    ASSERT_FALSE(double_.log.empty());
    EXPECT_THAT(double_.log.back(), HasSubstr(std::to_string(pairs)));
  }
}

TEST_F(SummariesTest, MorePairsThanRoomAreRefused) {
  double_.make = [](const mri_summary_make_req&, mri_summary_make_rsp& rsp) {
    rsp.n_pairs = UINT32_MAX;
  };
  KvCache cache(store(), 0, {});
  fill(cache);
  EXPECT_TRUE(cache.summaries().empty());
}

}  // namespace
}  // namespace varve::light
