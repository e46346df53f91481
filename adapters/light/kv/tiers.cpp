// The mover: asks the kv_tier plugin what shall be where, and does it.
#include <algorithm>
#include <cstring>
#include <string>

#include "adapters/light/kv/cache.h"
#include "mri/sdk/error.hpp"

namespace varve::light {
namespace {

constexpr uint32_t kFixed =
    MRI_BLOCK_SINK | MRI_BLOCK_PINNED | MRI_BLOCK_PARTIAL | MRI_BLOCK_EVICTED;

constexpr uint64_t kSummaryTokens = 256;  // while these are added, one summary is made

bool goes_cold(const mri_tier_action& action) {
  return action.what == MRI_TIER_DEMOTE && action.tier == MRI_TIER_COLD;
}

}  // namespace

bool KvCache::is_settled(size_t block) const {
  return views_[block].position + MRI_BLOCK_TOKENS <= settled_tokens_ && block != held_block_;
}

std::vector<mri_tier_action> KvCache::ask_policy(uint32_t why, uint64_t wanted_bytes) const {
  std::vector<mri_tier_block> rows(blocks_.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const mri_kv_block& view = views_[i];
    rows[i] = {view.id,
               view.position,
               view.n_tokens,
               view.tier,
               view.flags | (is_settled(i) ? 0 : MRI_BLOCK_PARTIAL),
               mass_queries_ > 0 ? static_cast<float>(blocks_[i].mass / mass_queries_) : 0.0f,
               0.0f,
               step_ - blocks_[i].last_read,
               blocks_[i].reads,
               0,
               block_bytes(i),
               0};
  }
  mri_tier_req req{};
  req.hdr.struct_size = sizeof(req);
  req.blocks = rows.data();
  req.n_blocks = rows.size();
  req.n_tokens = n_tokens_;
  req.step = step_;
  const bool own = account_.budget_bytes != 0;
  req.budget_bytes = own ? account_.budget_bytes : store_.pool().budget_bytes();
  if (req.budget_bytes == 0) req.budget_bytes = UINT64_MAX;  // no limit
  req.used_bytes = own ? account_.used_bytes : store_.pool().used_bytes();
  req.wanted_bytes = wanted_bytes;
  req.block_bytes[MRI_TIER_HOT] = store_.index_block_bytes() + store_.hot_block_bytes();
  req.block_bytes[MRI_TIER_WARM] = store_.index_block_bytes() + store_.warm_block_bytes();
  req.block_bytes[MRI_TIER_COLD] =
      store_.backing().kind() == BackingKind::kNone ? 0 : store_.index_block_bytes();
  req.why = why;
  req.hot_tokens = hot_tokens_;
  req.entropy = -1.0f;
  std::vector<mri_tier_action> actions(2 * blocks_.size() + 8);
  mri_tier_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  rsp.actions = actions.data();
  rsp.capacity = actions.size();
  mri_error err{};
  err.struct_size = sizeof(err);
  mri_status status = store_.tier.table->decide(store_.tier.self, &req, &rsp, &err);
  if (status == MRI_E_SPACE && rsp.n_actions > actions.size() &&
      rsp.n_actions <= 64 * actions.size()) {
    actions.resize(rsp.n_actions);
    rsp.actions = actions.data();
    rsp.capacity = actions.size();
    status = store_.tier.table->decide(store_.tier.self, &req, &rsp, &err);
  }
  check_plugin_call(status, err, "kv_tier");
  actions.resize(std::min<uint64_t>(rsp.n_actions, actions.size()));
  return actions;
}

uint32_t KvCache::apply_policy(uint32_t why, uint64_t wanted_bytes) {
  if (why == MRI_TIER_WHY_APPEND) settled_tokens_ = n_tokens_;
  if (!store_.tier || blocks_.empty()) return 0;
  if (why == MRI_TIER_WHY_PRESSURE) unfinished_ = {};
  const std::vector<mri_tier_action> actions = ask_policy(why, wanted_bytes);
  uint32_t skipped = 0;
  // A segment's summary must exist before its raw blocks may go, and is made from warm ones: so
  // what goes cold goes warm first.
  for (mri_tier_action action : actions) {
    if (goes_cold(action)) {
      action.tier = MRI_TIER_WARM;
      run_action(action);
    } else if (!run_action(action)) {
      ++skipped;
    }
  }
  // Under pressure there is no memory for summaries of segments that stay warm.
  if (why != MRI_TIER_WHY_PRESSURE || store_.backing().kind() == BackingKind::kNone)
    summarise_segments(summary_pages_max(why, actions));
  for (const mri_tier_action& action : actions) {
    if (goes_cold(action) && !run_action(action)) ++skipped;
  }
  return skipped;
}

// A segment's summary takes as long as a step: it is spread over those that add the next tokens.
uint64_t KvCache::summary_pages_max(uint32_t why, std::span<const mri_tier_action> actions) const {
  if (why != MRI_TIER_WHY_APPEND || std::any_of(actions.begin(), actions.end(), goes_cold))
    return UINT64_MAX;
  // Steps that fill no block do not come here.
  const uint64_t tokens = std::max<uint64_t>(appended_, MRI_BLOCK_TOKENS);
  return (store_.pages() * tokens + kSummaryTokens - 1) / kSummaryTokens;
}

size_t KvCache::find_block(uint64_t id) const {
  const auto at =
      std::lower_bound(views_.begin(), views_.end(), id,
                       [](const mri_kv_block& view, uint64_t value) { return view.id < value; });
  return at != views_.end() && at->id == id ? static_cast<size_t>(at - views_.begin())
                                            : views_.size();
}

// A move that fails leaves its block where it was: the tokens stay readable, so that a full disk or
// a broken quantizer costs memory and not the answer.
bool KvCache::run_action(const mri_tier_action& action) {
  if (action.what == MRI_TIER_RESIZE_HOT) {
    hot_tokens_ = action.n_tokens;
    return true;
  }
  const size_t block = find_block(action.block_id);
  if (block == views_.size() || (views_[block].flags & kFixed) != 0 || !is_settled(block))
    return false;
  try {
    return move_block(block, action);
  } catch (const std::exception& e) {
    store_.host().log(MRI_LOG_WARNING, "the block of tokens from " +
                                           std::to_string(views_[block].position) +
                                           " stays in its tier: " + e.what());
    return false;
  }
}

bool KvCache::move_block(size_t block, const mri_tier_action& action) {
  switch (action.what) {
    case MRI_TIER_DEMOTE:
      return action.tier == MRI_TIER_WARM ? demote_to_warm(block)
                                          : action.tier == MRI_TIER_COLD && demote_to_cold(block);
    case MRI_TIER_PROMOTE:
      return promote(block, action.tier);
    case MRI_TIER_EVICT: {
      if (tears_summary(block, block, block + 1)) return false;
      Evicted evicted;
      evict_block(block, evicted);
      ++epoch_;
      return true;
    }
    case MRI_TIER_PREWARM:
      if (blocks_[block].slot == nullptr) return false;
      store_.backing().prewarm(blocks_[block].slot.get());
      return true;
    default:
      return false;
  }
}

bool KvCache::demote_to_warm(size_t block) {
  mri_kv_block& view = views_[block];
  if (view.tier != MRI_TIER_HOT || !store_.has_quantizer()) return false;
  PoolMemory body = allocate(store_.warm_block_bytes());
  // Under pressure the last bytes of the budget may be missing: the hot copy then makes room for
  // its own smaller self.
  std::vector<uint8_t> aside;
  if (body) {
    std::memset(body.data(), 0, body.size());  // a quantizer may not write all of it
  } else {
    aside.resize(store_.warm_block_bytes());
  }
  uint8_t* out = body ? body.data() : aside.data();
  const uint32_t heads = store_.options().n_kv_heads, dim = store_.options().head_dim;
  store_.host().parallel_for(store_.pages(), [&](uint64_t page, uint32_t) {
    thread_local std::vector<float> scratch;
    scratch.resize(2 * MRI_BLOCK_TOKENS * dim);
    float* k = scratch.data();
    float* v = k + MRI_BLOCK_TOKENS * dim;
    const auto layer = static_cast<uint32_t>(page / heads),
               head = static_cast<uint32_t>(page % heads);
    store_.decode(view, nullptr, layer, head, k, v);
    store_.encode_warm(k, v, view, before(block), layer, head,
                       out + page * store_.warm_page_bytes());
  });
  if (!body) {
    body = store_.pool().exchange(blocks_[block].body, aside.size());
    if (!body) return false;
    std::copy(aside.begin(), aside.end(), body.data());
  }
  blocks_[block].body = std::move(body);
  set_body(block, blocks_[block].body.data(), store_.warm_page_bytes(), store_.warm_format(),
           MRI_TIER_WARM);
  return true;
}

bool KvCache::demote_to_cold(size_t block) {
  if (views_[block].tier == MRI_TIER_HOT && !demote_to_warm(block)) return false;
  if (views_[block].tier != MRI_TIER_WARM) return false;
  if (store_.backing().kind() == BackingKind::kNone) {
    if (views_[block].segment == UINT32_MAX) return false;  // nothing would stand for its tokens
    forget_pages(block);
    views_[block].flags |= MRI_BLOCK_EVICTED;
    views_[block].tier = MRI_TIER_COLD;
    return true;
  }
  blocks_[block].slot = store_.put_cold(blocks_[block].body.data());
  blocks_[block].body = PoolMemory();
  blocks_[block].reads = 0;
  set_body(block, blocks_[block].slot.get(), store_.warm_page_bytes(), store_.warm_format(),
           MRI_TIER_COLD);
  return true;
}

bool KvCache::promote(size_t block, uint32_t tier) {
  // A page that was rounded once stays rounded: promotion moves bytes nearer, it cannot make them
  // exact again.
  if (tier != MRI_TIER_WARM || views_[block].tier != MRI_TIER_COLD ||
      blocks_[block].slot == nullptr)
    return false;
  PoolMemory body = allocate(store_.warm_block_bytes());
  if (!body) return false;
  std::copy_n(blocks_[block].slot.get(), store_.warm_block_bytes(), body.data());
  blocks_[block].slot = nullptr;
  blocks_[block].body = std::move(body);
  set_body(block, blocks_[block].body.data(), store_.warm_page_bytes(), store_.warm_format(),
           MRI_TIER_WARM);
  return true;
}

}  // namespace varve::light
