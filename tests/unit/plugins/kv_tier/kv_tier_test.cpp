#include "mri/kind/kv_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "tests/support/fake_host.h"

namespace varve::test {
namespace {

constexpr uint64_t kBytes[3] = {1000, 500, 100};

// A context of blocks of 32 tokens, all hot, and a policy to ask.
class TierTest : public testing::Test {
 protected:
  void fill(uint32_t n_blocks) {
    blocks_.assign(n_blocks, {});
    for (uint32_t i = 0; i < n_blocks; ++i) {
      blocks_[i].id = 100 + i;
      blocks_[i].position = 32 * i;
      blocks_[i].n_tokens = 32;
      blocks_[i].bytes = kBytes[MRI_TIER_HOT];
    }
    blocks_[0].flags = MRI_BLOCK_SINK;
    req_ = sized<mri_tier_req>();
    std::copy_n(kBytes, 3, req_.block_bytes);
    req_.n_tokens = 32 * n_blocks;
    req_.budget_bytes = UINT32_MAX;
  }

  void set_tier(uint32_t block, uint32_t tier) {
    blocks_[block].tier = tier;
    blocks_[block].bytes = kBytes[tier];
  }

  // Asks and applies the answer, which must be possible.
  std::vector<mri_tier_action> decide(const FakeHost& host, uint32_t why) {
    req_.blocks = blocks_.data();
    req_.n_blocks = blocks_.size();
    req_.why = why;
    std::vector<mri_tier_action> actions(2 * blocks_.size());
    auto rsp = sized<mri_tier_rsp>();
    rsp.actions = actions.data();
    rsp.capacity = actions.size();
    const auto& table = host.table<mri_kv_tier_v1>(MRI_KV_TIER);
    EXPECT_EQ(table.decide(host.self(), &req_, &rsp, nullptr), MRI_OK);
    actions.resize(rsp.n_actions);
    for (const mri_tier_action& a : actions) apply(a);
    return actions;
  }

  void apply(const mri_tier_action& a) {
    const auto block = std::find_if(blocks_.begin(), blocks_.end(),
                                    [&](const auto& b) { return b.id == a.block_id; });
    ASSERT_NE(block, blocks_.end());
    EXPECT_EQ(block->flags, 0u) << "moved a fixed block: " << block->position;
    EXPECT_TRUE(a.what == MRI_TIER_DEMOTE ? a.tier > block->tier : a.tier < block->tier);
    if (a.what == MRI_TIER_DEMOTE || a.what == MRI_TIER_PROMOTE) {
      set_tier(static_cast<uint32_t>(block - blocks_.begin()), a.tier);
    }
  }

  uint64_t used() const {
    uint64_t bytes = 0;
    for (const auto& b : blocks_) bytes += b.bytes;
    return bytes;
  }

  std::vector<mri_tier_block> blocks_;
  mri_tier_req req_;
};

std::vector<mri_param> age_params() {
  return {param("hot_tokens", 320), param("warm_tokens", 640),
          param("pressure_headroom_percent", 0.0)};
}

TEST_F(TierTest, FullNeverMoves) {
  const FakeHost full(FULL_PLUGIN, {});
  fill(50);
  req_.wanted_bytes = 10000;
  for (uint32_t why : {MRI_TIER_WHY_APPEND, MRI_TIER_WHY_PRESSURE, MRI_TIER_WHY_QUERY}) {
    EXPECT_TRUE(decide(full, why).empty());
  }
}

TEST_F(TierTest, AgeLayersByDistanceFromTheEnd) {
  const FakeHost age(AGE_PLUGIN, age_params());
  fill(60);
  blocks_[20].flags = MRI_BLOCK_PINNED;
  decide(age, MRI_TIER_WHY_APPEND);
  for (uint32_t i = 0; i < 60; ++i) {
    const uint32_t tokens_after = 32 * (60 - i - 1);
    const uint32_t tier = i == 0 || i == 20    ? MRI_TIER_HOT
                          : tokens_after < 320 ? MRI_TIER_HOT
                          : tokens_after < 960 ? MRI_TIER_WARM
                                               : MRI_TIER_COLD;
    EXPECT_EQ(blocks_[i].tier, tier) << i;
  }
  EXPECT_TRUE(decide(age, MRI_TIER_WHY_APPEND).empty());
}

TEST_F(TierTest, AgeFollowsTheResizedWindow) {
  const FakeHost age(AGE_PLUGIN, age_params());
  fill(30);
  req_.hot_tokens = 640;
  decide(age, MRI_TIER_WHY_APPEND);
  EXPECT_EQ(blocks_[10].tier, MRI_TIER_HOT);
  EXPECT_EQ(blocks_[9].tier, MRI_TIER_WARM);
}

TEST_F(TierTest, PressureTakesTheOldestHotFirst) {
  const FakeHost age(AGE_PLUGIN, age_params());
  fill(30);
  req_.wanted_bytes = 900;
  const uint64_t before = used();
  decide(age, MRI_TIER_WHY_PRESSURE);
  EXPECT_EQ(before - used(), 1000u);
  EXPECT_EQ(blocks_[1].tier, MRI_TIER_WARM);
  EXPECT_EQ(blocks_[2].tier, MRI_TIER_WARM);
}

TEST_F(TierTest, PressureThenTakesTheLeastReadWarm) {
  const FakeHost age(AGE_PLUGIN, age_params());
  fill(10);
  for (uint32_t i = 1; i < 10; ++i) {
    set_tier(i, MRI_TIER_WARM);
    blocks_[i].mass = i == 7 ? 0.f : 0.1f;
    blocks_[i].idle_steps = i == 4 ? 50 : 1;
  }
  req_.wanted_bytes = 900;
  decide(age, MRI_TIER_WHY_PRESSURE);
  for (uint32_t i = 1; i < 10; ++i) {
    EXPECT_EQ(blocks_[i].tier, i == 7 || i == 4 || i == 1 ? MRI_TIER_COLD : MRI_TIER_WARM) << i;
  }
}

TEST_F(TierTest, PressureFreesTheHeadroomToo) {
  auto params = age_params();
  params.back() = param("pressure_headroom_percent", 10.0);
  const FakeHost age(AGE_PLUGIN, params);
  fill(40);
  req_.budget_bytes = 40000;
  req_.wanted_bytes = 500;
  const uint64_t before = used();
  decide(age, MRI_TIER_WHY_PRESSURE);
  EXPECT_EQ(before - used(), 4500u);
}

TEST_F(TierTest, ColdBlocksThatAreReadComeBackAndStay) {
  const FakeHost age(AGE_PLUGIN, age_params());
  fill(60);
  decide(age, MRI_TIER_WHY_APPEND);
  blocks_[5].reads = 4;
  const auto actions = decide(age, MRI_TIER_WHY_APPEND);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(blocks_[5].tier, MRI_TIER_WARM);
  EXPECT_TRUE(decide(age, MRI_TIER_WHY_APPEND).empty());
  blocks_[5].idle_steps = 256;
  decide(age, MRI_TIER_WHY_APPEND);
  EXPECT_EQ(blocks_[5].tier, MRI_TIER_COLD);
}

TEST_F(TierTest, QuestionsPrewarmTheMostRelevantThatFit) {
  const FakeHost age(AGE_PLUGIN, age_params());
  fill(60);
  decide(age, MRI_TIER_WHY_APPEND);
  blocks_[3].relevance = 0.6f;
  blocks_[4].relevance = 0.9f;
  blocks_[6].relevance = 0.7f;
  blocks_[8].relevance = 0.2f;
  req_.used_bytes = used();
  req_.budget_bytes = req_.used_bytes + 900;  // two of 400
  const auto actions = decide(age, MRI_TIER_WHY_QUERY);
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(actions[0].block_id, 104u);
  EXPECT_EQ(actions[1].block_id, 106u);
  EXPECT_EQ(actions[0].what, MRI_TIER_PREWARM);
}

TEST_F(TierTest, SaysHowMuchRoomIsNeeded) {
  const FakeHost age(AGE_PLUGIN, age_params());
  fill(30);
  req_.blocks = blocks_.data();
  req_.n_blocks = blocks_.size();
  auto rsp = sized<mri_tier_rsp>();
  const auto& table = age.table<mri_kv_tier_v1>(MRI_KV_TIER);
  EXPECT_EQ(table.decide(age.self(), &req_, &rsp, nullptr), MRI_E_SPACE);
  EXPECT_EQ(rsp.n_actions, 19u);
}

// Random contexts under random calls: fixed blocks stay, actions are possible (apply checks both),
// and pressure frees what was asked or all that can be freed.
TEST_F(TierTest, KeepsItsRulesOnRandomBlockLists) {
  const FakeHost age(AGE_PLUGIN, age_params());
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    fill(1 + random() % 80);
    for (uint32_t i = 1; i < blocks_.size(); ++i) {
      set_tier(i, random() % 3);
      blocks_[i].flags = random() % 5 == 0 ? 1u << random() % 4 : 0;
      blocks_[i].mass = random() % 9 == 0 ? NAN : static_cast<float>(random() % 100) / 1000;
      blocks_[i].relevance = random() % 9 == 0 ? NAN : static_cast<float>(random() % 100) / 100;
      blocks_[i].idle_steps = random() % 500;
      blocks_[i].reads = random() % 8;
    }
    req_.used_bytes = used();
    req_.budget_bytes = req_.used_bytes + random() % 20000;
    req_.wanted_bytes = random() % 30000;
    const uint64_t before = used();
    const uint32_t why = random() % 3;
    decide(age, why);
    if (why != MRI_TIER_WHY_PRESSURE) continue;
    const bool all_cold = std::all_of(blocks_.begin(), blocks_.end(), [](const auto& b) {
      return b.flags != 0 || b.tier == MRI_TIER_COLD;
    });
    EXPECT_TRUE(before - used() >= req_.wanted_bytes || all_cold);
  }
}

}  // namespace
}  // namespace varve::test
