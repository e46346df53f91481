// cache_fixture.h: contexts in a small store whose policies are the test's.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "adapters/light/forward/rope_tables.h"
#include "adapters/light/kv/cache.h"
#include "tests/unit/adapters/light/engine/policy_double.h"

namespace varve::light {

inline constexpr uint32_t kBlock = MRI_BLOCK_TOKENS, kSegment = MRI_SEGMENT_TOKENS;
inline constexpr uint32_t kLayers = 2, kHeads = 2, kDim = 32;

class CacheFixture : public testing::Test {
 protected:
  CacheFixture() : rope_(config(), 16384) {
    options_.n_layers = kLayers;
    options_.n_kv_heads = kHeads;
    options_.head_dim = kDim;
    double_.make = [](const mri_summary_make_req& req, mri_summary_make_rsp& rsp) {
      rsp.n_pairs = 1;
      rsp.log_count[0] = std::log(static_cast<float>(req.n_tokens));
    };
  }

  static ModelConfig config() {
    ModelConfig config;
    config.head_dim = config.rotary_dim = kDim;
    config.rope_base = 10000;
    return config;
  }

  KvStore& store() {
    if (!store_)
      store_ = std::make_unique<KvStore>(options_, mri::Host(double_.host()), &rope_.rope());
    return *store_;
  }
  uint64_t hot_block() { return store().index_block_bytes() + store().hot_block_bytes(); }

  // Appends n tokens and writes them, as a forward pass does.
  static void write(KvCache& cache, uint32_t n) {
    uint32_t first = cache.n_tokens();
    cache.append(n);
    std::vector<float> values(size_t{kBlock} * kDim);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = std::sin(static_cast<float>(i + 31 * first));
    while (first < cache.n_tokens()) {
      const uint32_t take = std::min(cache.n_tokens() - first, kBlock - first % kBlock);
      for (uint32_t page = 0; page < kLayers * kHeads; ++page) {
        cache.write(page / kHeads, page % kHeads, first, take, values.data(), kDim, values.data(),
                    kDim);
      }
      first += take;
    }
  }

  // Every block that may be moved goes to `tier`.
  void demote_all(uint16_t tier) {
    double_.decide = [tier](const mri_tier_req& req) {
      std::vector<mri_tier_action> actions;
      for (uint64_t i = 0; i < req.n_blocks; ++i) {
        if (req.blocks[i].tier < tier)
          actions.push_back({req.blocks[i].id, MRI_TIER_DEMOTE, tier, 0});
      }
      return actions;
    };
  }

  PolicyDouble double_;
  KvStoreOptions options_;
  RopeTables rope_;
  std::unique_ptr<KvStore> store_;
};

}  // namespace varve::light
