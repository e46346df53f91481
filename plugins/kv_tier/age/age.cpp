// Tiers by age: the newest tokens are hot, the next ones warm, the rest cold. Whole blocks move;
// sinks, pinned and partial blocks never do.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

#include "mri/sdk/kv_tier.hpp"

namespace {

class Age {
 public:
  Age(const mri::Host&, const mri::Params& params)
      : hot_tokens_(params.get<uint64_t>("hot_tokens")),
        warm_tokens_(params.get<uint64_t>("warm_tokens")),
        sink_tokens_(params.get<uint64_t>("sink_tokens")),
        headroom_(params.get<double>("pressure_headroom_percent") / 100),
        promote_reads_(params.get<uint64_t>("promote_reads")),
        recall_steps_(params.get<uint64_t>("recall_steps")),
        prewarm_relevance_(params.get<double>("prewarm_relevance")) {}

  mri_status decide(const mri_tier_req& req, mri_tier_rsp& rsp) const {
    Actions actions(rsp.actions, rsp.capacity, &rsp.n_actions);
    if (req.why == MRI_TIER_WHY_PRESSURE) {
      relieve(req, actions);
    } else {
      if (req.why == MRI_TIER_WHY_APPEND) grow_old(req, actions);
      recall(req, actions);
    }
    return actions.status();
  }

 private:
  using Actions = mri::Writer<mri_tier_action>;

  bool movable(const mri_tier_block& b) const {
    const uint32_t fixed =
        MRI_BLOCK_SINK | MRI_BLOCK_PINNED | MRI_BLOCK_PARTIAL | MRI_BLOCK_EVICTED;
    return (b.flags & fixed) == 0 && b.position >= sink_tokens_;
  }

  // A cold block that plans keep reading; it stays warm until they have not done so for a while.
  bool wanted(const mri_tier_block& b) const {
    return b.reads >= promote_reads_ && b.idle_steps < recall_steps_;
  }

  void grow_old(const mri_tier_req& req, Actions& actions) const {
    const uint64_t hot = req.hot_tokens != 0 ? req.hot_tokens : hot_tokens_;
    for (uint64_t i = 0; i < req.n_blocks; ++i) {
      const mri_tier_block& b = req.blocks[i];
      const uint64_t end = uint64_t{b.position} + b.n_tokens;
      const uint64_t age = req.n_tokens > end ? req.n_tokens - end : 0;
      uint32_t tier = MRI_TIER_HOT;
      if (age >= hot) tier = MRI_TIER_WARM;
      if (age >= hot + warm_tokens_ && !wanted(b)) tier = MRI_TIER_COLD;
      if (tier > b.tier && movable(b)) actions.push(move(b, MRI_TIER_DEMOTE, tier));
    }
  }

  // Oldest hot blocks go warm first, then warm ones cold: least attention, longest idle, oldest.
  void relieve(const mri_tier_req& req, Actions& actions) const {
    const uint64_t goal = req.wanted_bytes + headroom(req);
    std::vector<uint32_t> tier(req.n_blocks);
    std::vector<uint64_t> warm;
    uint64_t freed = 0;
    const auto demote = [&](uint64_t i, uint64_t bytes_now, uint32_t to) {
      if (freed >= goal || bytes_now <= req.block_bytes[to]) return;
      freed += bytes_now - req.block_bytes[to];
      tier[i] = to;
    };
    for (uint64_t i = 0; i < req.n_blocks; ++i) {
      const mri_tier_block& b = req.blocks[i];
      tier[i] = b.tier;
      if (!movable(b)) continue;
      if (b.tier == MRI_TIER_HOT) demote(i, b.bytes, MRI_TIER_WARM);
      if (tier[i] == MRI_TIER_WARM) warm.push_back(i);
    }
    std::sort(warm.begin(), warm.end(), [&](uint64_t x, uint64_t y) {
      const mri_tier_block &a = req.blocks[x], &b = req.blocks[y];
      return std::tuple(number(a.mass), ~a.idle_steps, x) <
             std::tuple(number(b.mass), ~b.idle_steps, y);
    });
    for (const uint64_t i : warm) {
      const mri_tier_block& b = req.blocks[i];
      demote(i, tier[i] == b.tier ? b.bytes : req.block_bytes[MRI_TIER_WARM], MRI_TIER_COLD);
    }
    for (uint64_t i = 0; i < req.n_blocks; ++i) {
      const mri_tier_block& b = req.blocks[i];
      if (tier[i] != b.tier) actions.push(move(b, MRI_TIER_DEMOTE, tier[i]));
    }
  }

  // Brings back what is read or asked for, most relevant first, while it fits below the headroom.
  void recall(const mri_tier_req& req, Actions& actions) const {
    std::vector<uint64_t> back;
    for (uint64_t i = 0; i < req.n_blocks; ++i) {
      const mri_tier_block& b = req.blocks[i];
      const bool asked = req.why == MRI_TIER_WHY_QUERY && b.relevance >= prewarm_relevance_;
      if (b.tier == MRI_TIER_COLD && movable(b) && (wanted(b) || asked)) back.push_back(i);
    }
    std::sort(back.begin(), back.end(), [&](uint64_t x, uint64_t y) {
      const float a = number(req.blocks[x].relevance), b = number(req.blocks[y].relevance);
      return std::tuple(-a, x) < std::tuple(-b, y);
    });
    const uint64_t taken = req.used_bytes + req.wanted_bytes + headroom(req);
    uint64_t room = req.budget_bytes > taken ? req.budget_bytes - taken : 0;
    for (const uint64_t i : back) {
      const mri_tier_block& b = req.blocks[i];
      const uint64_t cost = std::max(req.block_bytes[MRI_TIER_WARM], b.bytes) - b.bytes;
      if (cost > room) break;
      room -= cost;
      actions.push(move(b, wanted(b) ? MRI_TIER_PROMOTE : MRI_TIER_PREWARM, MRI_TIER_WARM));
    }
  }

  uint64_t headroom(const mri_tier_req& req) const {
    if (req.budget_bytes == UINT64_MAX) return 0;  // no budget: do what is wanted
    return static_cast<uint64_t>(static_cast<double>(req.budget_bytes) * headroom_);
  }
  static float number(float x) { return std::isnan(x) ? 0.f : x; }
  static mri_tier_action move(const mri_tier_block& b, uint32_t what, uint32_t tier) {
    return {b.id, static_cast<uint16_t>(what), static_cast<uint16_t>(tier), 0};
  }

  uint64_t hot_tokens_, warm_tokens_, sink_tokens_;
  double headroom_;
  uint64_t promote_reads_, recall_steps_;
  double prewarm_relevance_;
};

constexpr mri_param_desc kParams[] = {
    mri::param_int("hot_tokens", 2048, 32, 1 << 30, "newest tokens, kept exactly"),
    mri::param_int("warm_tokens", 65536, 0, 1 << 30,
                   "tokens behind, compressed; older ones are cold"),
    mri::param_int("sink_tokens", 32, 0, 4096, "first tokens of the text, never moved"),
    mri::param_float("pressure_headroom_percent", 5, 0, 50,
                     "share of the budget freed beyond the request and kept free of recalls"),
    mri::param_int("promote_reads", 4, 1, 1 << 30,
                   "a cold block that was read this often becomes warm again"),
    mri::param_int("recall_steps", 256, 1, 1 << 30,
                   "steps without a read after which such a block may go cold again"),
    mri::param_float("prewarm_relevance", 0.5, -1, 1,
                     "cold blocks at least this relevant to a question are fetched ahead, cosine"),
};

}  // namespace

MRI_PLUGIN(kv_tier, "dev.varve.kv_tier.age", "0.1.0", kParams, Age);
