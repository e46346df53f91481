// A kv_tier policy: what it asks for is possible, keeps to the budget, spares what must stay, and
// depends on the request alone.
#include <set>

#include "mri/conformance/opened.h"
#include "mri/conformance/random.h"
#include "mri/kind/kv_tier.h"

namespace mri::conformance {
namespace {

constexpr uint32_t kFixed =
    MRI_BLOCK_SINK | MRI_BLOCK_PINNED | MRI_BLOCK_PARTIAL | MRI_BLOCK_EVICTED;
constexpr uint64_t kBlockBytes[3] = {4096, 2048, 256};

// A made-up context and the question about it.
struct Case {
  std::vector<mri_tier_block> blocks;
  mri_tier_req req = sized<mri_tier_req>();

  Case(Random& random, uint64_t n_blocks, uint32_t why) {
    for (uint64_t i = 0; i < n_blocks; ++i) {
      mri_tier_block block{};
      block.id = 1000 + 7 * i;
      block.position = static_cast<uint32_t>(i) * MRI_BLOCK_TOKENS;
      block.n_tokens = MRI_BLOCK_TOKENS;
      block.tier = random.below32(3);
      block.bytes = kBlockBytes[block.tier];
      if (i == 0) block.flags |= MRI_BLOCK_SINK;
      if (random.chance(5)) block.flags |= MRI_BLOCK_PINNED;
      if (i + 1 == n_blocks) {
        block.flags |= MRI_BLOCK_PARTIAL;
        block.n_tokens = 1 + random.below32(31);
      }
      if ((block.flags & kFixed) != 0) {
        block.tier = MRI_TIER_HOT;
        block.bytes = kBlockBytes[MRI_TIER_HOT];
      }
      block.mass = static_cast<float>(random.unit());
      block.relevance = static_cast<float>(2 * random.unit() - 1);
      block.idle_steps = random.below(1000);
      block.reads = block.tier == MRI_TIER_COLD ? random.below32(20) : 0;
      req.used_bytes += block.bytes;
      req.n_tokens += block.n_tokens;
      blocks.push_back(block);
    }
    req.step = random.below(10000);
    req.wanted_bytes = random.below(16) * kBlockBytes[0];
    req.budget_bytes =
        why == MRI_TIER_WHY_PRESSURE
            ? req.used_bytes + req.wanted_bytes - std::min(req.used_bytes, req.wanted_bytes) / 2
            : req.used_bytes + req.wanted_bytes + random.below(64) * kBlockBytes[0];
    std::copy(std::begin(kBlockBytes), std::end(kBlockBytes), req.block_bytes);
    req.why = why;
    req.hot_tokens = random.chance(50) ? 0 : 32 * random.below32(64);
    req.entropy = random.chance(50) ? -1.f : static_cast<float>(random.unit());
    req.blocks = blocks.data();
    req.n_blocks = blocks.size();
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;
};

class Policy {
 public:
  explicit Policy(Bench& bench)
      : bench_(bench), plugin_(bench), table_(plugin_.table<mri_kv_tier_v1>(MRI_KV_TIER)) {}

  // One call with room for `capacity` actions.
  mri_status decide(const Case& c, uint64_t capacity, std::vector<mri_tier_action>* actions,
                    uint64_t* n_actions) {
    Guarded<mri_tier_action> room(capacity);
    mri_tier_rsp rsp = sized<mri_tier_rsp>();
    rsp.actions = room.data();
    rsp.capacity = capacity;
    const std::vector<mri_tier_block> before = c.blocks;
    const mri_status status = call(bench_, "decide", [&](mri_error* e) {
      return table_.decide(plugin_.self(), &c.req, &rsp, e);
    });
    bench_.report->expect(room.is_intact(), "decide wrote outside the actions");
    bench_.report->expect(before.empty() || std::memcmp(before.data(), c.blocks.data(),
                                                        before.size() * sizeof(before[0])) == 0,
                          "decide changed the request's blocks");
    *n_actions = rsp.n_actions;
    if (status != MRI_OK) return status;
    if (!bench_.report->expect(rsp.n_actions <= capacity, "decide: more actions than room"))
      throw Stop{};
    actions->assign(room.data(), room.data() + rsp.n_actions);
    return status;
  }

  std::vector<mri_tier_action> decide(const Case& c) {
    std::vector<mri_tier_action> actions;
    uint64_t n = 0;
    const mri_status status = decide(c, 4 * c.blocks.size() + 16, &actions, &n);
    bench_.report->expect(status == MRI_OK, "decide: status " + std::to_string(status));
    return actions;
  }

 private:
  Bench& bench_;
  Opened plugin_;
  const mri_kv_tier_v1& table_;
};

bool operator==(const mri_tier_action& a, const mri_tier_action& b) {
  return a.block_id == b.block_id && a.what == b.what && a.tier == b.tier &&
         a.n_tokens == b.n_tokens;
}
bool are_equal(const std::vector<mri_tier_action>& a, const std::vector<mri_tier_action>& b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](auto& x, auto& y) { return x == y; });
}

// What is wrong with an action, given the block's tier at that moment; null: nothing.
const char* wrong_move(const mri_tier_action& action, const mri_tier_block& block, uint32_t tier) {
  if ((block.flags & kFixed) != 0) return "moves a sink, pinned, partial or evicted block";
  switch (action.what) {
    case MRI_TIER_DEMOTE:
      if (action.tier > MRI_TIER_COLD || action.tier <= tier)
        return "demotes to a tier that is not lower";
      return nullptr;
    case MRI_TIER_PROMOTE:
      return action.tier >= tier ? "promotes to a tier that is not higher" : nullptr;
    case MRI_TIER_PREWARM:
      return tier != MRI_TIER_COLD ? "prewarms a block that is not cold" : nullptr;
    case MRI_TIER_EVICT:
      return nullptr;
    default:
      return "is of no listed sort";
  }
}

struct Effect {
  uint64_t used = 0;  // bytes after all actions
  bool promotes = false, demotes = false;
};

// Applies the actions in order and reports impossible ones.
Effect apply(Bench& bench, const Case& c, const std::vector<mri_tier_action>& actions) {
  std::vector<uint32_t> tier;
  for (const mri_tier_block& block : c.blocks) tier.push_back(block.tier);
  std::set<uint64_t> gone;
  Effect effect{c.req.used_bytes, false, false};
  for (const mri_tier_action& action : actions) {
    if (action.what == MRI_TIER_RESIZE_HOT) continue;
    const auto block = std::find_if(c.blocks.begin(), c.blocks.end(),
                                    [&](auto& b) { return b.id == action.block_id; });
    const std::string at = "action on block " + std::to_string(action.block_id) + " ";
    if (!bench.report->expect(block != c.blocks.end() && gone.count(action.block_id) == 0,
                              at + "names what does not exist"))
      continue;
    uint32_t& now = tier[static_cast<size_t>(block - c.blocks.begin())];
    const char* wrong = wrong_move(action, *block, now);
    if (!bench.report->expect(wrong == nullptr, at + (wrong == nullptr ? "" : wrong))) continue;
    const uint64_t had = now == block->tier ? block->bytes : kBlockBytes[now];
    if (action.what == MRI_TIER_EVICT) {
      gone.insert(action.block_id);
      effect.used -= had;
      continue;
    }
    if (action.what == MRI_TIER_DEMOTE) effect.demotes = true;
    if (action.what != MRI_TIER_DEMOTE) effect.promotes = true;
    if (action.what == MRI_TIER_PREWARM) continue;
    now = action.tier;
    effect.used = effect.used - had + kBlockBytes[now];
  }
  return effect;
}

template <class F>
void each_case(Bench& bench, int rounds, F&& f) {
  Random random(bench.seed);
  for (int i = 0; i < rounds; ++i) {
    for (const uint32_t why : {MRI_TIER_WHY_APPEND, MRI_TIER_WHY_PRESSURE, MRI_TIER_WHY_QUERY}) {
      const Case c(random, random.below(200), why);
      f(c);
    }
  }
}

void asks_for_what_is_possible(Bench& bench) {
  Policy policy(bench);
  each_case(bench, 40, [&](const Case& c) { apply(bench, c, policy.decide(c)); });
}

void keeps_to_the_budget(Bench& bench) {
  Policy policy(bench);
  each_case(bench, 40, [&](const Case& c) {
    const Effect effect = apply(bench, c, policy.decide(c));
    if (c.req.why == MRI_TIER_WHY_PRESSURE) {
      bench.report->expect(!effect.promotes, "promotes or prewarms under pressure");
      bench.report->expect(effect.used <= c.req.used_bytes, "takes more memory under pressure");
    } else if (effect.promotes) {
      bench.report->expect(effect.used + c.req.wanted_bytes <= c.req.budget_bytes,
                           "promotes beyond the budget");
    }
  });
}

void tells_what_it_frees(Bench& bench) {
  Policy policy(bench);
  int helped = 0, asked = 0;
  each_case(bench, 40, [&](const Case& c) {
    if (c.req.why != MRI_TIER_WHY_PRESSURE || c.req.wanted_bytes == 0) return;
    ++asked;
    helped +=
        apply(bench, c, policy.decide(c)).used + c.req.wanted_bytes <= c.req.used_bytes ? 1 : 0;
  });
  bench.report->note("freed what was wanted in " + std::to_string(helped) + " of " +
                     std::to_string(asked) + " cases of pressure");
}

void answers_the_same_again(Bench& bench) {
  Policy one(bench), two(bench);
  each_case(bench, 20, [&](const Case& c) {
    const std::vector<mri_tier_action> first = one.decide(c);
    bench.report->expect(are_equal(first, two.decide(c)), "two objects answer differently");
    bench.report->expect(are_equal(first, one.decide(c)),
                         "the second answer differs from the first");
  });
}

void says_how_much_room(Bench& bench) {
  Policy policy(bench);
  each_case(bench, 20, [&](const Case& c) {
    const std::vector<mri_tier_action> all = policy.decide(c);
    std::vector<mri_tier_action> fitted;
    uint64_t n = 0;
    const mri_status none = policy.decide(c, 0, &fitted, &n);
    bench.report->expect(none == (all.empty() ? MRI_OK : MRI_E_SPACE) && n == all.size(),
                         "without room: status " + std::to_string(none) + ", n_actions " +
                             std::to_string(n) + " of " + std::to_string(all.size()));
    const mri_status exact = policy.decide(c, all.size(), &fitted, &n);
    bench.report->expect(exact == MRI_OK && are_equal(fitted, all),
                         "with just enough room: another answer");
  });
}

void survives_extremes(Bench& bench) {
  Policy policy(bench);
  Random random(bench.seed);
  for (const uint64_t n : {0ull, 1ull, 2ull, 5000ull}) {
    for (uint32_t why = 0; why < 5; ++why) {  // beyond 2: of a newer host
      Case c(random, n, why);
      for (mri_tier_block& block : c.blocks) {
        if (random.chance(30)) block.mass = NAN;
        if (random.chance(30)) block.relevance = INFINITY;
        if (random.chance(10)) block.idle_steps = UINT64_MAX;
      }
      c.req.budget_bytes = random.chance(50) ? 0 : UINT64_MAX;
      c.req.wanted_bytes = random.chance(50) ? 0 : UINT64_MAX / 2;
      c.req.entropy = NAN;
      apply(bench, c, policy.decide(c));
    }
  }
}

void serves_threads(Bench& bench) {
  Policy policy(bench);
  Random random(bench.seed);
  const Case c(random, 100, MRI_TIER_WHY_PRESSURE);
  const std::vector<mri_tier_action> alone = policy.decide(c);
  in_four_threads(bench, 100, "answers",
                  [&](uint64_t) { return are_equal(policy.decide(c), alone); });
}

void survives_any_request(Bench& bench) {
  Policy policy(bench);
  Random random(bench.seed);
  for (int i = 0; i < 300; ++i) {
    Case c(random, random.below(64), random.below32(4));
    for (mri_tier_block& block : c.blocks) {
      if (random.chance(20)) block.position = static_cast<uint32_t>(random.next());
      if (random.chance(20)) block.bytes = random.next();
      if (random.chance(20)) block.reads = static_cast<uint32_t>(random.next());
    }
    if (random.chance(50)) c.req.used_bytes = random.next();
    if (random.chance(50)) c.req.budget_bytes = random.next();
    if (random.chance(50)) c.req.wanted_bytes = random.next();
    if (random.chance(50)) c.req.n_tokens = random.next();
    if (random.chance(50)) c.req.hot_tokens = static_cast<uint32_t>(random.next());
    for (uint64_t& bytes : c.req.block_bytes) bytes = random.chance(30) ? random.next() : bytes;
    std::vector<mri_tier_action> actions;
    uint64_t n = 0;
    policy.decide(c, 4 * c.blocks.size() + 16, &actions, &n);
  }
}

constexpr Test kTests[] = {
    {"kv_tier.space", "kv_tier", 2, MRI_1_0,
     "Without room for all actions: MRI_E_SPACE, n_actions says how many there are.",
     "mri::Writer counts on past the end.", says_how_much_room},
    {"kv_tier.legal", "kv_tier", 3, MRI_1_0,
     "Every action names a block of the request, is possible when its turn comes, and spares "
     "sinks, "
     "pinned and partial blocks.",
     "Check flags; DEMOTE wants a larger tier number than the block's, PROMOTE a smaller one.",
     asks_for_what_is_possible},
    {"kv_tier.budget", "kv_tier", 3, MRI_1_0,
     "Nothing is promoted under pressure, nor beyond budget - used - wanted.",
     "Add up what promotions cost: block_bytes[tier] - bytes.", keeps_to_the_budget},
    {"kv_tier.pressure", "kv_tier", 3, MRI_1_0,
     "Tells how often a policy frees what is wanted; one that frees nothing is legal.",
     "Where it frees too little, the context fails with MRI_E_NOMEM.", tells_what_it_frees},
    {"kv_tier.pure", "kv_tier", 3, MRI_1_0,
     "The same request has the same answer, in every object.",
     "Use the request alone: no clock, no counter, no addresses.", answers_the_same_again},
    {"kv_tier.extremes", "kv_tier", 3, MRI_1_0,
     "No blocks, NaN masses, no budget, a reason of a newer host: still only possible actions.",
     "NaN compares false with everything: replace it before sorting. Treat unknown reasons as "
     "none.",
     survives_extremes},
    {"kv_tier.threads", "kv_tier", 4, MRI_1_0, "Four threads at once get the same answers.",
     "decide is [any]: no shared scratch memory.", serves_threads},
    {"kv_tier.fuzz", "kv_tier", 4, MRI_1_0,
     "Any numbers in the request: never a crash or a write outside.",
     "Sums of 64-bit numbers overflow: compare by subtraction.", survives_any_request},
};

}  // namespace

std::span<const Test> kv_tier_tests() { return kTests; }

}  // namespace mri::conformance
