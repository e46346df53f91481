// Random operations on contexts and kept prefixes that share memory, against a model that shares
// nothing: what each context reads is what its own text says.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <vector>

#include "mri/sdk/error.hpp"
#include "tests/unit/adapters/light/engine/cache_fixture.h"

namespace varve::light {
namespace {

constexpr double kInt8Error = 0.02;  // values are in [-1, 1]

float value(uint32_t word, uint32_t token, uint32_t page, uint32_t channel) {
  return std::sin(static_cast<float>(word % 997 * 31 + token * 7 + page * 5 + channel * 3));
}

// A context and what it should hold: a word for each token, and which are gone.
struct Text {
  std::unique_ptr<KvCache> cache;
  std::vector<uint32_t> words;
  std::vector<bool> gone;
};

class PrefixModelTest : public CacheFixture {
 protected:
  std::vector<mri_prefix_key> keys_of(const Text& text) const {
    std::vector<mri_prefix_key> keys(text.words.size() / kBlock);
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < keys.size() * kBlock; ++i) {
      hash = (hash ^ text.words[i]) * 1099511628211u;
      std::memcpy(keys[i / kBlock].bytes, &hash, sizeof(hash));
    }
    return keys;
  }

  void append(Text& text, uint32_t n) {
    uint32_t first = text.cache->n_tokens();
    try {
      text.cache->append(n);
    } catch (const mri::Error& e) {
      ASSERT_EQ(e.status(), MRI_E_NOMEM);
      ASSERT_EQ(text.cache->n_tokens(), first);
      return;
    }
    text.words.resize(first + n, static_cast<uint32_t>(random_() % 2));  // texts often agree
    text.gone.resize(text.words.size());
    std::vector<float> values(size_t{kBlock} * kDim);
    while (first < text.cache->n_tokens()) {
      const uint32_t take = std::min(text.cache->n_tokens() - first, kBlock - first % kBlock);
      for (uint32_t page = 0; page < kLayers * kHeads; ++page) {
        for (uint32_t t = 0; t < take; ++t) {
          for (uint32_t c = 0; c < kDim; ++c)
            values[t * kDim + c] = value(text.words[first + t], first + t, page, c);
        }
        text.cache->write(page / kHeads, page % kHeads, first, take, values.data(), kDim,
                          values.data(), kDim);
      }
      first += take;
    }
    text.cache->apply_policy(MRI_TIER_WHY_APPEND, 0);
  }

  void evict(Text& text) {
    const uint64_t n = text.words.size();
    const mri_token_range range{random_() % (n + 1), random_() % 80};
    text.cache->evict(std::span(&range, 1), static_cast<uint32_t>(random_() % 3));
    const auto blocks = text.cache->blocks();
    // What was refused or rounded is the eviction tests' business: tokens never come back, and
    // none outside the widened range goes.
    for (uint64_t t = 0; t < n; ++t) {
      const bool live = (blocks[t / kBlock].live_mask >> (t % kBlock) & 1) != 0;
      const bool near = t + kBlock > range.first && t < range.first + range.count + kBlock;
      ASSERT_TRUE(near || live != text.gone[t]) << t;
      text.gone[t] = !live;
    }
  }

  void keep(Text& text) {
    const auto keys = keys_of(text);
    const size_t n = text.cache->prefix_blocks(keys.size());
    if (n == 0) return;
    PrefixCache& kept = store().prefixes();
    const std::span some(keys.data(), n);
    const bool pinned = random_() % 8 == 0;
    if (!kept.touch(keys.back(), some, pinned))
      kept.keep(keys.back(), some, text.cache->prefix(n), pinned);
    names_.push_back(keys.back());
  }

  void fork(const Text& like) {
    const PrefixCache::Found found = store().prefixes().find(keys_of(like));
    if (found.prefix == nullptr) return;
    Text text;
    text.cache = std::make_unique<KvCache>(store(), 0, *found.prefix, found.n_blocks);
    text.words.assign(like.words.begin(), like.words.begin() + found.n_blocks * kBlock);
    text.gone.resize(text.words.size());
    texts_.push_back(std::move(text));
  }

  void check(const Text& text) {
    const auto blocks = text.cache->blocks();
    ASSERT_EQ(text.cache->n_tokens(), text.words.size());
    std::vector<float> v(kBlock * kDim);
    for (size_t b = 0; b < blocks.size(); ++b) {
      uint32_t live = 0;
      for (uint32_t t = 0; t < kBlock && b * kBlock + t < text.words.size(); ++t)
        live |= text.gone[b * kBlock + t] ? 0 : 1u << t;
      ASSERT_EQ(blocks[b].live_mask, live) << b;
      if (live == 0 || blocks[b].body == nullptr) continue;
      for (uint32_t page = 0; page < kLayers * kHeads; ++page) {
        store().decode(blocks[b], nullptr, page / kHeads, page % kHeads, nullptr, v.data());
        for (uint32_t t = 0; t < kBlock; ++t) {
          if ((live >> t & 1) == 0) continue;
          const auto token = static_cast<uint32_t>(b * kBlock + t);
          for (uint32_t c = 0; c < kDim; c += 9)
            ASSERT_NEAR(v[t * kDim + c], value(text.words[token], token, page, c), kInt8Error);
        }
      }
    }
  }

  void random_tiers() {
    double_.decide = [this](const mri_tier_req& req) {
      std::vector<mri_tier_action> actions;
      const uint64_t share = req.why == MRI_TIER_WHY_PRESSURE ? 1 : 4;
      for (uint64_t i = 0; i < req.n_blocks; ++i) {
        if (random_() % share != 0) continue;
        const auto what =
            static_cast<uint16_t>(random_() % 4 == 0 ? MRI_TIER_PROMOTE : MRI_TIER_DEMOTE);
        actions.push_back({req.blocks[i].id, what, static_cast<uint16_t>(1 + random_() % 2), 0});
      }
      return actions;
    };
  }

  void step() {
    const size_t n = texts_.size();
    const size_t i = n > 0 ? random_() % n : 0;
    const uint64_t what = random_() % 100;
    if (n == 0 || (what < 8 && n < 12)) {
      texts_.push_back(
          {std::make_unique<KvCache>(store(), 0, std::span<mri_token_range>()), {}, {}});
      append(texts_.back(), 1 + random_() % 200);
    } else if (what < 40) {
      append(texts_[i], 1 + random_() % 70);
    } else if (what < 50) {
      evict(texts_[i]);
    } else if (what < 65) {
      keep(texts_[i]);
    } else if (what < 80 && n < 12) {
      fork(texts_[i]);
    } else if (what < 90) {
      texts_.erase(texts_.begin() + static_cast<ptrdiff_t>(i));
    } else if (what < 94 && !names_.empty()) {
      store().prefixes().forget(names_[random_() % names_.size()]);
    } else if (what < 97) {
      texts_[i].cache->shrink(random_() % 100000);
    } else {
      store().prefixes().drop(random_() % 100000);
    }
  }

  void run(uint64_t seed) {
    random_.seed(seed);
    store_.reset();
    names_.clear();
    random_tiers();
    for (int i = 0; i < 400; ++i) {
      step();
      if (HasFatalFailure()) return;
      if (i % 10 == 0) std::for_each(texts_.begin(), texts_.end(), [&](auto& t) { check(t); });
      if (HasFatalFailure()) return;
    }
    texts_.clear();
    EXPECT_EQ(store().pool().used_bytes(), store().pool().only_kept_bytes());
    for (const mri_prefix_key& name : names_) store().prefixes().forget(name);
    EXPECT_EQ(store().prefixes().size(), 0u);
    EXPECT_EQ(store().pool().used_bytes(), 0u);
    EXPECT_EQ(store().pool().kept_bytes(), 0u);
    EXPECT_EQ(store().backing().used_bytes(), 0u);
  }

  std::mt19937_64 random_;
  std::vector<Text> texts_;
  std::vector<mri_prefix_key> names_;
};

TEST_F(PrefixModelTest, WithoutLimits) {
  double_.pairs_max = 8;
  for (uint64_t seed = 1; seed <= 6; ++seed) run(seed);
}

TEST_F(PrefixModelTest, InASmallBudget) {
  options_.budget_bytes = 60 * (store().index_block_bytes() + store().hot_block_bytes());
  options_.backing_limit_bytes = 40 * store().warm_block_bytes();
  options_.prefix_limit_bytes = 30 * (store().index_block_bytes() + store().hot_block_bytes());
  for (uint64_t seed = 11; seed <= 16; ++seed) run(seed);
}

TEST_F(PrefixModelTest, WithoutABacking) {
  options_.backing = BackingKind::kNone;
  double_.pairs_max = 8;
  for (uint64_t seed = 21; seed <= 26; ++seed) run(seed);
}

}  // namespace
}  // namespace varve::light
