// Kept prefixes and the contexts that go on from them: what is shared, what is counted, what goes
// first.
#include "adapters/light/kv/prefix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "mri/sdk/error.hpp"
#include "tests/unit/adapters/light/engine/cache_fixture.h"

namespace varve::light {
namespace {

using Keys = std::vector<mri_prefix_key>;

// The keys of a text that agrees with text `of` up to block `same`.
Keys keys(uint8_t text, size_t n, uint8_t of = 0, size_t same = 0) {
  Keys keys(n);
  for (size_t i = 0; i < n; ++i) {
    keys[i].bytes[0] = static_cast<uint8_t>(i);
    keys[i].bytes[1] = static_cast<uint8_t>(i >> 8);
    keys[i].bytes[31] = i < same ? of : text;
  }
  return keys;
}

class PrefixTest : public CacheFixture {
 protected:
  PrefixCache& kept() { return store().prefixes(); }
  uint64_t used() { return store().pool().used_bytes(); }

  // As the engine does.
  void keep(const KvCache& cache, const Keys& k, bool pinned = false) {
    const size_t n = cache.prefix_blocks(k.size());
    if (n == 0) return;
    const std::span<const mri_prefix_key> some(k.data(), n);
    if (!kept().touch(k.back(), some, pinned)) kept().keep(k.back(), some, cache.prefix(n), pinned);
  }
  std::unique_ptr<KvCache> fork(const Keys& k, uint64_t budget = 0) {
    const PrefixCache::Found found = kept().find(k);
    if (found.prefix == nullptr) return nullptr;
    return std::make_unique<KvCache>(store(), budget, *found.prefix, found.n_blocks);
  }
  std::unique_ptr<KvCache> text(uint32_t n_tokens) {
    auto cache = std::make_unique<KvCache>(store(), 0, std::span<const mri_token_range>{});
    write(*cache, n_tokens);
    cache->apply_policy(MRI_TIER_WHY_APPEND, 0);
    return cache;
  }
  static bool same_memory(const KvCache& a, const KvCache& b, size_t n_blocks) {
    return std::equal(a.blocks().begin(), a.blocks().begin() + n_blocks, b.blocks().begin(),
                      [](const mri_kv_block& x, const mri_kv_block& y) {
                        return x.index == y.index && x.body == y.body && x.tier == y.tier &&
                               x.flags == y.flags && x.live_mask == y.live_mask;
                      });
  }
};

TEST_F(PrefixTest, AForkSharesFullBlocksAlone) {
  auto parent = text(3 * kBlock + 7);
  keep(*parent, keys(1, 9));
  EXPECT_EQ(used(), 4 * hot_block());
  auto child = fork(keys(1, 9));
  ASSERT_NE(child, nullptr);
  EXPECT_EQ(child->n_tokens(), 3 * kBlock);
  EXPECT_EQ(child->epoch(), parent->epoch());
  EXPECT_TRUE(same_memory(*parent, *child, 3));
  EXPECT_EQ(used(), 4 * hot_block());
  EXPECT_EQ(child->usage().hot_bytes, 3 * hot_block());
  write(*child, 5);
  EXPECT_EQ(used(), 5 * hot_block());
  EXPECT_EQ(parent->n_tokens(), 3 * kBlock + 7);
}

TEST_F(PrefixTest, TheLongestKeyPresentIsFound) {
  auto a = text(4 * kBlock), b = text(6 * kBlock);
  keep(*a, keys(1, 4));
  keep(*b, keys(2, 6, 1, 2));  // as `a` for two blocks
  EXPECT_EQ(kept().find(keys(1, 9)).n_blocks, 4u);
  EXPECT_EQ(kept().find(keys(2, 9, 1, 2)).n_blocks, 6u);
  EXPECT_EQ(kept().find(keys(3, 9, 1, 2)).n_blocks, 2u);
  EXPECT_EQ(kept().find(keys(3, 9)).prefix, nullptr);
  EXPECT_EQ(kept().find({}).prefix, nullptr);
  a.reset();
  b.reset();
  kept().forget(keys(1, 4).back());
  EXPECT_EQ(kept().find(keys(1, 9)).n_blocks, 2u) << "the other text has these blocks too";
  kept().forget(keys(2, 6, 1, 2).back());
  kept().forget(keys(2, 6, 1, 2).back());
  EXPECT_EQ(used(), 0u);
}

TEST_F(PrefixTest, AChangeInOneNeverShowsInAnother) {
  demote_all(MRI_TIER_WARM);
  auto parent = std::make_unique<KvCache>(store(), 0, std::span<const mri_token_range>{});
  write(*parent, 4 * kBlock);
  double_.decide = nullptr;
  parent->apply_policy(MRI_TIER_WHY_APPEND, 0);
  keep(*parent, keys(1, 4));
  auto first = fork(keys(1, 4)), second = fork(keys(1, 4));
  demote_all(MRI_TIER_WARM);
  first->apply_policy(MRI_TIER_WHY_QUERY, 0);
  const mri_token_range range{kBlock, kBlock + 5};
  second->evict(std::span(&range, 1), MRI_EVICT_TOKEN);
  EXPECT_EQ(first->blocks()[2].tier, MRI_TIER_WARM);
  EXPECT_NE(first->blocks()[2].body, parent->blocks()[2].body);
  EXPECT_EQ(second->blocks()[1].live_mask, 0u);
  EXPECT_EQ(second->blocks()[2].live_mask, UINT32_MAX << 5);
  EXPECT_TRUE(same_memory(*parent, *fork(keys(1, 4)), 4));
  for (const mri_kv_block& block : parent->blocks()) {
    EXPECT_EQ(block.tier, MRI_TIER_HOT);
    EXPECT_EQ(block.live_mask, UINT32_MAX);
  }
}

TEST_F(PrefixTest, MemoryGoesBackInAnyOrder) {
  for (int order = 0; order < 24; ++order) {
    std::vector<int> turns = {0, 1, 2, 3};
    for (int i = 0; i < order; ++i) std::next_permutation(turns.begin(), turns.end());
    auto parent = text(3 * kBlock);
    keep(*parent, keys(1, 3));
    auto child = fork(keys(1, 3)), other = fork(keys(1, 2));
    demote_all(MRI_TIER_COLD);
    child->apply_policy(MRI_TIER_WHY_QUERY, 0);
    keep(*child, keys(2, 3));
    double_.decide = nullptr;
    for (const int turn : turns) {
      if (turn == 0) parent.reset();
      if (turn == 1) child.reset();
      if (turn == 2) other.reset();
      if (turn == 3) {
        kept().forget(keys(1, 3).back());
        kept().forget(keys(2, 3).back());
      }
    }
    EXPECT_EQ(used(), 0u) << order;
    EXPECT_EQ(store().backing().used_bytes(), 0u) << order;
  }
}

TEST_F(PrefixTest, KeepingAgainCostsNothingAndALongerOneReplaces) {
  auto cache = text(4 * kBlock);
  keep(*cache, keys(1, 2));
  keep(*cache, keys(1, 2));
  EXPECT_EQ(kept().size(), 1u);
  keep(*cache, keys(1, 4));
  EXPECT_EQ(kept().size(), 1u);
  keep(*cache, keys(1, 3));  // a part of what is kept
  EXPECT_EQ(kept().size(), 1u);
  keep(*cache, keys(1, 3), true);
  EXPECT_EQ(kept().size(), 2u);
  write(*cache, 2 * kBlock);
  cache->apply_policy(MRI_TIER_WHY_APPEND, 0);
  keep(*cache, keys(1, 6));
  EXPECT_EQ(kept().size(), 2u);
  EXPECT_EQ(kept().find(keys(1, 9)).n_blocks, 6u);
  kept().forget(keys(1, 6).back());
  EXPECT_EQ(kept().find(keys(1, 9)).n_blocks, 3u) << "the pinned one stays";
}

TEST_F(PrefixTest, BlocksWithEvictedTokensEndAPrefix) {
  auto cache = text(4 * kBlock);
  const mri_token_range range{2 * kBlock + 3, 1};
  cache->evict(std::span(&range, 1), MRI_EVICT_TOKEN);
  keep(*cache, keys(1, 4));
  EXPECT_EQ(kept().find(keys(1, 4)).n_blocks, 2u);
}

TEST_F(PrefixTest, TheLeastRecentlyUsedGoesFirst) {
  options_.prefix_limit_bytes = 5 * (store().index_block_bytes() + store().hot_block_bytes());
  store_.reset();
  for (uint8_t i = 1; i <= 2; ++i) keep(*text(2 * kBlock), keys(i, 2));
  kept().find(keys(1, 2));
  keep(*text(2 * kBlock), keys(3, 2));
  EXPECT_EQ(kept().find(keys(2, 2)).prefix, nullptr);
  EXPECT_EQ(kept().find(keys(1, 2)).n_blocks, 2u);
  EXPECT_EQ(store().pool().kept_bytes(), 4 * hot_block());
  keep(*text(6 * kBlock), keys(4, 6));  // never fits: pushes nothing out
  EXPECT_EQ(kept().size(), 2u);
  keep(*text(6 * kBlock), keys(4, 6), true);
  EXPECT_EQ(kept().size(), 1u);
  EXPECT_EQ(kept().find(keys(4, 6)).n_blocks, 6u);
}

TEST_F(PrefixTest, KeptPrefixesGoBeforeAnybodyIsAskedOrRefused) {
  options_.budget_bytes = 6 * (store().index_block_bytes() + store().hot_block_bytes());
  store_.reset();
  int asked = 0;
  double_.decide = [&](const mri_tier_req& req) {
    if (req.why == MRI_TIER_WHY_PRESSURE) ++asked;
    return std::vector<mri_tier_action>();
  };
  keep(*text(2 * kBlock), keys(1, 2));
  keep(*text(2 * kBlock), keys(2, 2), true);
  auto cache = text(4 * kBlock);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(kept().find(keys(1, 2)).prefix, nullptr);
  EXPECT_EQ(kept().find(keys(2, 2)).n_blocks, 2u) << "pinned";
  EXPECT_THROW(cache->append(1), mri::Error);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(kept().drop(1), 0u);
  kept().forget(keys(2, 2).back());
  write(*cache, 1);
}

TEST_F(PrefixTest, AFullBackingIsMadeRoomFor) {
  options_.backing_limit_bytes = 2 * store().warm_block_bytes();
  store_.reset();
  demote_all(MRI_TIER_COLD);
  keep(*text(3 * kBlock), keys(1, 3));
  EXPECT_EQ(store().backing().used_bytes(), 2 * store().warm_block_bytes());
  auto cache = text(3 * kBlock);
  EXPECT_EQ(cache->blocks()[2].tier, MRI_TIER_COLD);
  EXPECT_EQ(kept().size(), 0u);
}

TEST_F(PrefixTest, ShrinkingCountsWhatGoesBackToThePool) {
  auto cache = text(4 * kBlock);
  keep(*cache, keys(1, 4), true);
  auto child = fork(keys(1, 4));
  write(*child, kBlock);
  child->apply_policy(MRI_TIER_WHY_APPEND, 0);
  demote_all(MRI_TIER_WARM);
  const uint64_t before = used();
  EXPECT_EQ(child->shrink(1), 0u) << "the others hold the exact blocks: compressing costs memory";
  EXPECT_GT(used(), before);
  kept().forget(keys(1, 4).back());
  const uint64_t full = used();
  const uint64_t freed = cache->shrink(1);
  EXPECT_EQ(freed, full - used());
  EXPECT_GT(freed, 0u);
}

TEST_F(PrefixTest, AForkLargerThanItsBudgetIsRefused) {
  keep(*text(4 * kBlock), keys(1, 4));
  EXPECT_THROW(fork(keys(1, 4), 4 * hot_block() - 1), mri::Error);
  EXPECT_EQ(used(), 4 * hot_block());
  EXPECT_NE(fork(keys(1, 4), 4 * hot_block()), nullptr);
}

TEST_F(PrefixTest, ASummaryStaysWithItsWholeSegment) {
  double_.pairs_max = 8;
  demote_all(MRI_TIER_WARM);
  auto cache = text(2 * kSegment + 3 * kBlock);
  ASSERT_EQ(cache->summaries().size(), 2u);
  keep(*cache, keys(1, 70));
  auto whole = fork(keys(1, 70));
  EXPECT_EQ(whole->summaries().size(), 2u);
  EXPECT_EQ(whole->blocks()[40].segment, 1u);
  auto part = fork(keys(1, 40));
  EXPECT_EQ(part->n_tokens(), 40 * kBlock);
  EXPECT_EQ(part->summaries().size(), 1u);
  EXPECT_EQ(part->blocks()[31].segment, 0u);
  EXPECT_EQ(part->blocks()[32].segment, UINT32_MAX);
  // Made anew once its segment is complete, of its own text.
  write(*part, kSegment);
  part->apply_policy(MRI_TIER_WHY_APPEND, 0);
  EXPECT_EQ(part->summaries().size(), 2u);
}

TEST_F(PrefixTest, ASegmentOfWhichOnlyTheSummaryIsLeftIsNotTorn) {
  options_.backing = BackingKind::kNone;
  double_.pairs_max = 8;
  demote_all(MRI_TIER_COLD);
  auto cache = text(2 * kSegment + 3 * kBlock);
  EXPECT_EQ(cache->blocks()[40].body, nullptr);
  keep(*cache, keys(1, 67));
  EXPECT_EQ(kept().find(keys(1, 67)).n_blocks, 67u);
  EXPECT_EQ(kept().find(keys(1, 64)).n_blocks, 64u);
  EXPECT_EQ(kept().find(keys(1, 63)).n_blocks, 32u);
  EXPECT_EQ(kept().find(keys(1, 20)).n_blocks, 1u) << "the sinks are always there";
  auto child = fork(keys(1, 63));
  EXPECT_EQ(child->summaries().size(), 1u);
  EXPECT_EQ(child->blocks().size(), 32u);
}

}  // namespace
}  // namespace varve::light
