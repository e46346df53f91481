// Contexts of many threads go on from the same prefixes, change, and go, while prefixes come and
// go: for the race detector, and for what is left at the end.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "mri/sdk/error.hpp"
#include "tests/unit/adapters/light/engine/cache_fixture.h"

namespace varve::light {
namespace {

class PrefixThreadsTest : public CacheFixture {
 protected:
  static std::vector<mri_prefix_key> keys(uint8_t text, size_t n) {
    std::vector<mri_prefix_key> keys(n);
    for (size_t i = 0; i < n; ++i) keys[i] = {{static_cast<uint8_t>(i), text}};
    return keys;
  }

  // Reads all that is shared: the first value of each block is its position's, whoever wrote it.
  bool is_sound(const KvCache& cache) {
    std::vector<float> v(size_t{kBlock} * kDim);
    for (const mri_kv_block& block : cache.blocks()) {
      if (block.body == nullptr || (block.live_mask & 1) == 0) continue;
      store().decode(block, nullptr, kLayers - 1, kHeads - 1, nullptr, v.data());
      if (std::abs(v[0] - std::sin(31.0f * static_cast<float>(block.position))) > 0.02f)
        return false;
    }
    return true;
  }

  void keep(const KvCache& cache, uint8_t text, bool pinned) {
    const auto all = keys(text, 12);
    const size_t n = cache.prefix_blocks(all.size());
    if (n == 0) return;
    PrefixCache& kept = store().prefixes();
    const std::span some(all.data(), n);
    if (!kept.touch(all[n - 1], some, pinned)) kept.keep(all[n - 1], some, cache.prefix(n), pinned);
  }

  std::unique_ptr<KvCache> open(uint8_t text) {
    const PrefixCache::Found found = store().prefixes().find(keys(text, 12));
    if (found.prefix != nullptr)
      return std::make_unique<KvCache>(store(), 0, *found.prefix, found.n_blocks);
    return std::make_unique<KvCache>(store(), 0, std::span<const mri_token_range>());
  }

  // False when something read was wrong.
  bool live(uint64_t seed) {
    std::mt19937_64 random(seed);
    bool sound = true;
    for (int round = 0; round < 60; ++round) {
      const auto text = static_cast<uint8_t>(random() % 3);
      const std::unique_ptr<KvCache> cache = open(text);
      try {
        for (int i = 0; i < 3; ++i) {
          // Block by block, so that values stand at the same places in all texts.
          for (uint64_t n = 1 + random() % 3; n > 0; --n) write(*cache, kBlock);
          cache->apply_policy(MRI_TIER_WHY_APPEND, 0);
        }
        if (random() % 2 == 0) keep(*cache, text, random() % 10 == 0);
        const mri_token_range range{random() % 200, random() % 100};
        if (random() % 2 == 0) cache->evict(std::span(&range, 1), MRI_EVICT_TOKEN);
        if (random() % 4 == 0) cache->shrink(random() % 100000);
      } catch (const mri::Error& e) {
        if (e.status() != MRI_E_NOMEM) return false;
      }
      if (random() % 4 == 0) store().prefixes().forget(keys(text, 12)[random() % 12]);
      if (random() % 8 == 0) store().prefixes().drop(random() % 100000);
      sound = sound && is_sound(*cache);
    }
    return sound;
  }
};

TEST_F(PrefixThreadsTest, ManyThreadsShareAndChange) {
  options_.budget_bytes = 120 * (store().index_block_bytes() + store().hot_block_bytes());
  options_.prefix_limit_bytes = options_.budget_bytes / 3;
  store_.reset();
  store();
  double_.pairs_max = 4;
  double_.decide = [](const mri_tier_req& req) {
    std::vector<mri_tier_action> actions;
    for (uint64_t i = 0; i < req.n_blocks; ++i) {
      const auto tier = static_cast<uint16_t>(1 + i % 2);
      if (i % 4 == 3 || (req.why == MRI_TIER_WHY_PRESSURE && i % 4 != 0))
        actions.push_back({req.blocks[i].id, MRI_TIER_DEMOTE, tier, 0});
    }
    return actions;
  };
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      if (!live(t)) ++wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(store().pool().used_bytes(), store().pool().only_kept_bytes());
  for (uint8_t text = 0; text < 3; ++text) {
    for (const mri_prefix_key& key : keys(text, 12)) store().prefixes().forget(key);
  }
  EXPECT_EQ(store().prefixes().size(), 0u);
  EXPECT_EQ(store().pool().used_bytes(), 0u);
  EXPECT_EQ(store().pool().kept_bytes(), 0u);
  EXPECT_EQ(store().backing().used_bytes(), 0u);
}

}  // namespace
}  // namespace varve::light
