// kv_tier/h2o: heavy hitters and a recent window stay; what becomes of the rest is a parameter.
//
// H2O keeps, of n tokens, the k with the largest sum over all queries so far of the attention they
// received, and the newest ones. Here the unit is a block, and the sum is what the runtime measured
// (mri_tier_block::mass). A runtime that measures nothing says 0 for every block: then the blocks
// that plans read last count as heavy, and of those the newest.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "mri/sdk/kv_tier.hpp"

namespace {

constexpr uint32_t kFixed =
    MRI_BLOCK_SINK | MRI_BLOCK_PINNED | MRI_BLOCK_PARTIAL | MRI_BLOCK_EVICTED;

class H2o {
 public:
  H2o(const mri::Host&, const mri::Params& params)
      : heavy_blocks_(params.get<uint64_t>("heavy_tokens") / MRI_BLOCK_TOKENS),
        recent_tokens_(params.get<uint64_t>("recent_tokens")),
        rest_(rest_of(params.get<std::string>("rest"))) {}

  static void caps(mri_caps& caps) {
    caps.thread_model = 3;
    caps.determinism = 3;
  }

  mri_status decide(const mri_tier_req& req, mri_tier_rsp& rsp) const {
    mri::Writer<mri_tier_action> out(rsp.actions, rsp.capacity, &rsp.n_actions);
    if (req.why == MRI_TIER_WHY_APPEND) {
      const std::vector<const mri_tier_block*> old = heaviest_first(req);
      for (size_t i = heavy_blocks_; i < old.size(); ++i) give_up(*old[i], out);
    } else if (req.why == MRI_TIER_WHY_PRESSURE) {
      relieve(req, out);
    }
    return out.status();
  }

 private:
  using Actions = mri::Writer<mri_tier_action>;

  // Where blocks that are neither heavy nor recent go.
  struct Rest {
    uint16_t what;
    uint16_t tier;  // of a demotion
  };

  static Rest rest_of(const std::string& name) {
    if (name == "warm") return {MRI_TIER_DEMOTE, MRI_TIER_WARM};
    if (name == "cold") return {MRI_TIER_DEMOTE, MRI_TIER_COLD};
    return {MRI_TIER_EVICT, 0};
  }

  // Blocks older than the recent window that may be moved.
  std::vector<const mri_tier_block*> heaviest_first(const mri_tier_req& req) const {
    std::vector<const mri_tier_block*> old;
    for (uint64_t i = 0; i < req.n_blocks; ++i) {
      const mri_tier_block& block = req.blocks[i];
      const uint64_t end = uint64_t{block.position} + block.n_tokens;
      const bool is_recent = end > req.n_tokens || req.n_tokens - end < recent_tokens_;
      if (!is_recent && (block.flags & kFixed) == 0) old.push_back(&block);
    }
    // An order of all blocks: mass, then the last read, then age. Never NaN.
    std::sort(old.begin(), old.end(), [](const mri_tier_block* a, const mri_tier_block* b) {
      return std::tuple(-mass(*a), a->idle_steps, ~uint64_t{a->position}, a->id) <
             std::tuple(-mass(*b), b->idle_steps, ~uint64_t{b->position}, b->id);
    });
    return old;
  }

  static float mass(const mri_tier_block& block) { return std::isnan(block.mass) ? 0 : block.mass; }

  // Lightest blocks first, until enough is free. The recent window is not touched.
  void relieve(const mri_tier_req& req, Actions& out) const {
    std::vector<const mri_tier_block*> old = heaviest_first(req);
    uint64_t missing = req.wanted_bytes;
    while (!old.empty() && missing > 0) {
      const mri_tier_block& block = *old.back();
      old.pop_back();
      const uint64_t left = rest_.what == MRI_TIER_EVICT ? 0 : req.block_bytes[rest_.tier];
      if (block.bytes <= left || !give_up(block, out)) continue;
      missing -= std::min(missing, block.bytes - left);
    }
  }

  // False when the block is there already.
  bool give_up(const mri_tier_block& block, Actions& out) const {
    if (rest_.what == MRI_TIER_DEMOTE && block.tier >= rest_.tier) return false;
    out.push({block.id, rest_.what, rest_.tier, 0});
    return true;
  }

  uint64_t heavy_blocks_, recent_tokens_;
  Rest rest_;
};

constexpr mri_param_desc kParams[] = {
    mri::param_int("heavy_tokens", 1024, 0, 1 << 30,
                   "tokens kept for the attention they received, in blocks of 32"),
    mri::param_int("recent_tokens", 1024, 32, 1 << 30, "newest tokens, which always stay"),
    mri::param_string(
        "rest", "evict", "evict|warm|cold",
        "what becomes of the others: forgotten, as in the paper; compressed; or cold"),
};

}  // namespace

MRI_PLUGIN(kv_tier, "org.example.kv_tier.h2o", "1.0.0", kParams, H2o);
