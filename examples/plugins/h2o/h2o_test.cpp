#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "mri/kind/kv_tier.h"
#include "mri/sdk/testing.hpp"

namespace {

using mri::testing::ParamValues;
using mri::testing::Plugin;

constexpr uint64_t kHotBytes = 1000, kWarmBytes = 400;

// Full hot blocks of these masses, ids from 1; the first is the text's sink.
std::vector<mri_tier_block> blocks_of(const std::vector<float>& masses) {
  std::vector<mri_tier_block> blocks(masses.size());
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    blocks[i].id = i + 1;
    blocks[i].position = i * MRI_BLOCK_TOKENS;
    blocks[i].n_tokens = MRI_BLOCK_TOKENS;
    blocks[i].mass = masses[i];
    blocks[i].bytes = kHotBytes;
  }
  blocks[0].flags = MRI_BLOCK_SINK;
  return blocks;
}

std::vector<mri_tier_action> decide(const Plugin& plugin, const std::vector<mri_tier_block>& blocks,
                                    uint32_t why, uint64_t wanted_bytes = 0) {
  auto req = mri::testing::sized<mri_tier_req>();
  req.blocks = blocks.data();
  req.n_blocks = blocks.size();
  req.n_tokens = blocks.size() * MRI_BLOCK_TOKENS;
  req.why = why;
  req.wanted_bytes = wanted_bytes;
  req.block_bytes[MRI_TIER_HOT] = kHotBytes;
  req.block_bytes[MRI_TIER_WARM] = kWarmBytes;
  std::vector<mri_tier_action> actions(blocks.size());
  auto rsp = mri::testing::sized<mri_tier_rsp>();
  rsp.actions = actions.data();
  rsp.capacity = actions.size();
  const auto& tier = plugin.table<mri_kv_tier_v1>(MRI_KV_TIER);
  MRI_CHECK(tier.decide(plugin.self(), &req, &rsp, nullptr) == MRI_OK);
  actions.resize(rsp.n_actions);
  return actions;
}

// Ids of the blocks that are given up; all actions are of this sort.
std::set<uint64_t> given_up(const std::vector<mri_tier_action>& actions, uint32_t what,
                            uint32_t tier) {
  std::set<uint64_t> ids;
  for (const mri_tier_action& action : actions) {
    MRI_CHECK(action.what == what && action.tier == tier);
    ids.insert(action.block_id);
  }
  return ids;
}

ParamValues two_heavy_two_recent(const char* rest) {
  return {{"heavy_tokens", int64_t{64}}, {"recent_tokens", int64_t{64}}, {"rest", rest}};
}

// Blocks 1 (sink), 7 and 8 (recent) stay; of 2 to 6 the two with the most mass do.
const std::vector<float> kMasses = {0.5f, 0.02f, 0.2f, 0.01f, 0.1f, 0.04f, 0.f, 0.f};

void keeps_heavy_and_recent_blocks() {
  const Plugin evicts(two_heavy_two_recent("evict"));
  const std::vector<mri_tier_block> blocks = blocks_of(kMasses);
  const std::set<uint64_t> rest = {2, 4, 6};
  MRI_CHECK(given_up(decide(evicts, blocks, MRI_TIER_WHY_APPEND), MRI_TIER_EVICT, 0) == rest);
  const Plugin compresses(two_heavy_two_recent("warm"));
  MRI_CHECK(given_up(decide(compresses, blocks, MRI_TIER_WHY_APPEND), MRI_TIER_DEMOTE,
                     MRI_TIER_WARM) == rest);
}

void what_is_gone_or_down_stays_so() {
  std::vector<mri_tier_block> blocks = blocks_of(kMasses);
  blocks[1].flags = MRI_BLOCK_EVICTED;
  blocks[3].flags = MRI_BLOCK_PINNED;
  blocks[5].tier = MRI_TIER_WARM;
  const Plugin plugin(two_heavy_two_recent("warm"));
  MRI_CHECK(decide(plugin, blocks, MRI_TIER_WHY_APPEND).empty());
  MRI_CHECK(decide(plugin, blocks, MRI_TIER_WHY_QUERY).empty());
}

void pressure_takes_the_lightest_until_enough_is_free() {
  const std::vector<mri_tier_block> blocks = blocks_of(kMasses);
  const Plugin evicts(two_heavy_two_recent("evict"));
  const auto one = decide(evicts, blocks, MRI_TIER_WHY_PRESSURE, 1);
  MRI_CHECK(one.size() == 1 && one[0].block_id == 4);
  MRI_CHECK(decide(evicts, blocks, MRI_TIER_WHY_PRESSURE, 2 * kHotBytes + 1).size() == 3);
  // More than there is: heavy ones too, recent ones never.
  MRI_CHECK(given_up(decide(evicts, blocks, MRI_TIER_WHY_PRESSURE, 100 * kHotBytes), MRI_TIER_EVICT,
                     0) == (std::set<uint64_t>{2, 3, 4, 5, 6}));
  const Plugin compresses(two_heavy_two_recent("warm"));
  MRI_CHECK(decide(compresses, blocks, MRI_TIER_WHY_PRESSURE, kHotBytes).size() == 2);
}

// A runtime that measures no attention: what plans read last is heavy.
void without_mass_the_last_read_counts() {
  std::vector<mri_tier_block> blocks = blocks_of(std::vector<float>(8, 0.f));
  for (uint32_t i = 0; i < blocks.size(); ++i) blocks[i].idle_steps = 10;
  blocks[1].idle_steps = 1;
  blocks[2].mass = NAN;
  const Plugin plugin(two_heavy_two_recent("evict"));
  // Beside block 2 the newest of those that are alike.
  MRI_CHECK(given_up(decide(plugin, blocks, MRI_TIER_WHY_APPEND), MRI_TIER_EVICT, 0) ==
            (std::set<uint64_t>{3, 4, 5}));
}

}  // namespace

int main() {
  keeps_heavy_and_recent_blocks();
  what_is_gone_or_down_stays_so();
  pressure_takes_the_lightest_until_enough_is_free();
  without_mass_the_last_read_counts();
  return mri::testing::result();
}
