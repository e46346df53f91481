// What a context's memory does under policies of every kind, the hostile ones included.
#include "adapters/light/kv/cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mri/sdk/error.hpp"
#include "tests/unit/adapters/light/engine/cache_fixture.h"

namespace varve::light {
namespace {

using testing::HasSubstr;
using CacheTest = CacheFixture;

TEST_F(CacheTest, BudgetCountsIndexAndBodyOfTheNextBlock) {
  const uint64_t budget = 3 * hot_block() - 1;
  KvCache cache(store(), budget, {});
  write(cache, 2 * kBlock);
  try {
    cache.append(1);
    FAIL() << "no error";
  } catch (const mri::Error& e) {
    EXPECT_EQ(e.status(), MRI_E_NOMEM);
    EXPECT_THAT(e.what(), HasSubstr(std::to_string(2 * hot_block())));
  }
  EXPECT_EQ(cache.n_tokens(), 2 * kBlock);
  EXPECT_LE(store().pool().used_bytes(), budget);
  KvCache exact(store(), 3 * hot_block(), {});
  write(exact, 3 * kBlock);
}

TEST_F(CacheTest, PressureFitsAnExactBudget) {
  demote_all(MRI_TIER_WARM);
  KvCache cache(store(), 4 * hot_block(), {});
  write(cache, 4 * kBlock);
  cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
  write(cache, kBlock);
  EXPECT_LE(store().pool().used_bytes(), 4 * hot_block());
  EXPECT_EQ(cache.blocks()[1].tier, MRI_TIER_WARM);
  EXPECT_EQ(cache.blocks()[0].tier, MRI_TIER_HOT);  // the sinks
}

TEST_F(CacheTest, UsageIsWhatThePoolGave) {
  double_.pairs_max = 40;
  demote_all(MRI_TIER_WARM);
  KvCache cache(store(), 0, {});
  write(cache, kSegment + 100);
  cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
  ASSERT_EQ(cache.summaries().size(), 1u);
  const mri_kv_usage usage = cache.usage();
  EXPECT_EQ(usage.hot_bytes + usage.warm_bytes + usage.cold_bytes, store().pool().used_bytes());
  const uint64_t blocks = cache.blocks().size();
  const uint64_t summary = usage.hot_bytes + usage.warm_bytes -
                           blocks * store().index_block_bytes() - 2 * store().hot_block_bytes() -
                           (blocks - 2) * store().warm_block_bytes();
  // Two pages of pairs a layer and head, and their biases.
  EXPECT_EQ(summary, 2u * kLayers * kHeads * (kBlock * kDim * 4 + kBlock * sizeof(float)));
}

TEST_F(CacheTest, AnUnlimitedBudgetReadsAsTheLargestNumber) {
  uint64_t budget = 0;
  double_.decide = [&](const mri_tier_req& req) {
    budget = req.budget_bytes;
    return std::vector<mri_tier_action>();
  };
  KvCache cache(store(), 0, {});
  write(cache, 1);
  cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
  EXPECT_EQ(budget, UINT64_MAX);
}

TEST_F(CacheTest, AMoveThatFailsLeavesItsBlock) {
  double_.encode_status = MRI_E_DEVICE;
  demote_all(MRI_TIER_WARM);
  KvCache cache(store(), 0, {});
  write(cache, 3 * kBlock);
  EXPECT_EQ(cache.apply_policy(MRI_TIER_WHY_APPEND, 0), 3u);
  EXPECT_EQ(cache.blocks()[1].tier, MRI_TIER_HOT);
  ASSERT_FALSE(double_.log.empty());
  EXPECT_THAT(double_.log[0], HasSubstr("quantizer"));
}

TEST_F(CacheTest, AFullBackingLeavesBlocksWarm) {
  options_.backing_limit_bytes = 1;
  demote_all(MRI_TIER_COLD);
  KvCache cache(store(), 0, {});
  write(cache, 3 * kBlock);
  EXPECT_EQ(cache.apply_policy(MRI_TIER_WHY_APPEND, 0), 3u);
  EXPECT_EQ(cache.blocks()[1].tier, MRI_TIER_WARM);
  EXPECT_NE(cache.blocks()[1].body, nullptr);
  ASSERT_FALSE(double_.log.empty());
  EXPECT_THAT(double_.log[0], HasSubstr("backing_limit_mb"));
}

TEST_F(CacheTest, AHeldBlockCanBeWrittenAgain) {
  demote_all(MRI_TIER_COLD);
  KvCache cache(store(), 0, {});
  write(cache, kBlock + 5);
  cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
  cache.hold();
  write(cache, 4 * kBlock);
  cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
  EXPECT_EQ(cache.blocks()[1].tier, MRI_TIER_HOT);
  EXPECT_EQ(cache.blocks()[2].tier, MRI_TIER_COLD);
  cache.truncate(kBlock + 5);
  cache.release_hold();
  write(cache, kBlock);
  cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
  EXPECT_EQ(cache.blocks()[1].tier, MRI_TIER_COLD);
  EXPECT_EQ(cache.usage().backing_bytes, store().backing().used_bytes());
}

TEST_F(CacheTest, HostileActionsAreSkipped) {
  double_.decide = [](const mri_tier_req& req) {
    const uint64_t id = req.blocks[1].id;
    return std::vector<mri_tier_action>{{999, MRI_TIER_DEMOTE, MRI_TIER_WARM, 0},
                                        {id, 77, MRI_TIER_WARM, 0},
                                        {id, MRI_TIER_DEMOTE, 7, 0},
                                        {id, MRI_TIER_PROMOTE, MRI_TIER_HOT, 0},
                                        {id, MRI_TIER_PREWARM, 0, 0},
                                        {req.blocks[0].id, MRI_TIER_EVICT, 0, 0}};
  };
  KvCache cache(store(), 0, {});
  write(cache, 3 * kBlock);
  EXPECT_EQ(cache.apply_policy(MRI_TIER_WHY_APPEND, 0), 6u);
  EXPECT_EQ(cache.usage().hot_tokens, 3 * kBlock);
}

TEST_F(CacheTest, APolicyThatNeverHasEnoughRoomIsInternal) {
  double_.decide_status = MRI_E_SPACE;
  KvCache cache(store(), 0, {});
  write(cache, kBlock);
  try {
    cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
    FAIL() << "no error";
  } catch (const mri::Error& e) {
    EXPECT_EQ(e.status(), MRI_E_INTERNAL);
    EXPECT_THAT(e.what(), HasSubstr("kv_tier"));
  }
}

TEST_F(CacheTest, CountsReadsOfColdBlocks) {
  demote_all(MRI_TIER_COLD);
  KvCache cache(store(), 0, {});
  write(cache, 3 * kBlock);
  cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
  cache.note_reads(std::vector<uint32_t>{1});  // of a chunk: not counted
  write(cache, 1);
  for (int i = 0; i < 3; ++i) cache.note_reads(std::vector<uint32_t>{1, 1});
  for (int i = 0; i < 2; ++i) cache.note_reads({});
  mri_tier_block seen{};
  double_.decide = [&](const mri_tier_req& req) {
    seen = req.blocks[1];
    return std::vector<mri_tier_action>{{seen.id, MRI_TIER_PROMOTE, MRI_TIER_WARM, 0}};
  };
  EXPECT_EQ(cache.apply_policy(MRI_TIER_WHY_APPEND, 0), 0u);
  EXPECT_EQ(seen.reads, 3u);
  EXPECT_EQ(seen.idle_steps, 2u);
  EXPECT_EQ(cache.blocks()[1].tier, MRI_TIER_WARM);
  EXPECT_EQ(store().backing().used_bytes(), store().warm_block_bytes());  // block 2
}

TEST_F(CacheTest, AQuantizerSeesThePageBefore) {
  demote_all(MRI_TIER_WARM);
  KvCache cache(store(), 0, {});
  write(cache, 3 * kBlock);
  cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
  constexpr size_t kPages = kLayers * kHeads;
  ASSERT_EQ(double_.previous_bodies.size(), 2 * kPages);
  for (size_t page = 0; page < kPages; ++page) {
    EXPECT_EQ(double_.previous_bodies[page], nullptr);  // the sinks before it are not encoded
    EXPECT_EQ(double_.previous_bodies[kPages + page],
              cache.blocks()[1].body + page * store().warm_page_bytes());
  }
}

TEST_F(CacheTest, PinnedRanges) {
  const mri_token_range ranges[] = {{40, UINT64_MAX}, {5, 0}};
  const KvCache cold(store(), 0, std::span(ranges, 2));
  KvCache to_the_end(store(), 0, std::span(ranges, 1));
  write(to_the_end, 3 * kBlock);
  EXPECT_EQ(to_the_end.blocks()[0].flags & MRI_BLOCK_PINNED, 0u);
  EXPECT_NE(to_the_end.blocks()[1].flags & MRI_BLOCK_PINNED, 0u);
  EXPECT_NE(to_the_end.blocks()[2].flags & MRI_BLOCK_PINNED, 0u);
  KvCache empty_range(store(), 0, std::span(ranges + 1, 1));
  write(empty_range, kBlock);
  EXPECT_EQ(empty_range.blocks()[0].flags & MRI_BLOCK_PINNED, 0u);
}

TEST_F(CacheTest, EvictsNothingForRangesWithoutTokens) {
  KvCache cache(store(), 0, {});
  write(cache, 3 * kSegment - 10);
  const mri_token_range ranges[] = {
      {5000, 10}, {100, 0}, {UINT64_MAX, UINT64_MAX}, {3 * kSegment - 10, 1}};
  for (uint32_t granularity = 0; granularity <= MRI_EVICT_SEGMENT; ++granularity) {
    const KvCache::Evicted evicted = cache.evict(ranges, granularity);
    EXPECT_EQ(evicted.n_tokens, 0u) << granularity;
    EXPECT_EQ(evicted.n_refused, 0u) << granularity;
    EXPECT_EQ(evicted.bytes, 0u) << granularity;
  }
}

}  // namespace
}  // namespace varve::light
