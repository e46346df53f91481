// mri.memory/1: prefixes that many contexts share, and making room.
#include <algorithm>

#include "adapters/light/engine_context.h"

namespace varve::light {

void Engine::reuse(const mri_reuse_req& req, mri_reuse_rsp& rsp) {
  if (req.n_keys > 0 && req.keys == nullptr) throw mri::Error(MRI_E_ARG, "keys: null pointer");
  rsp.ctx = rsp.n_tokens = 0;
  const uint64_t limit = context_limit(req.max_tokens);
  const size_t n_keys = std::min<uint64_t>(req.n_keys, limit / MRI_BLOCK_TOKENS);
  const PrefixCache::Found found = store_->prefixes().find(std::span(req.keys, n_keys));
  if (found.prefix == nullptr) return;
  std::unique_ptr<Context> context;
  try {
    context =
        std::make_unique<Context>(*store_, req.budget_bytes, *found.prefix, found.n_blocks, limit);
  } catch (const mri::Error& e) {
    if (e.status() != MRI_E_NOMEM) throw;
    return;  // larger than the context may be: a new one compresses as it reads
  }
  Lease lease(*this, std::move(context));
  (*lease).summary_is_legal = true;
  rsp.ctx = lease.ctx();
  rsp.n_tokens = (*lease).cache.n_tokens();
}

void Engine::keep(uint64_t ctx, std::span<const mri_prefix_key> keys, uint32_t flags) {
  Lease lease(*this, ctx);
  const KvCache& cache = (*lease).cache;
  const size_t n = cache.prefix_blocks(keys.size());
  if (n == 0) return;
  const bool pinned = (flags & MRI_KEEP_PINNED) != 0;
  const mri_prefix_key& name = keys.back();
  PrefixCache& prefixes = store_->prefixes();
  if (!prefixes.touch(name, keys.first(n), pinned))
    prefixes.keep(name, keys.first(n), cache.prefix(n), pinned);
}

void Engine::forget(const mri_prefix_key& last_key) { store_->prefixes().forget(last_key); }

uint64_t Engine::shrink(uint64_t ctx, uint64_t wanted_bytes) {
  uint64_t freed = store_->prefixes().drop(wanted_bytes);
  if (ctx == 0 || freed >= wanted_bytes) return freed;
  Lease lease(*this, ctx);
  return freed + (*lease).cache.shrink(wanted_bytes - freed);
}

void Engine::memory_usage(mri_memory_usage& usage) {
  const Pool& pool = store_->pool();
  usage.budget_bytes = pool.budget_bytes();
  usage.used_bytes = pool.used_bytes();
  usage.kept_bytes = pool.only_kept_bytes();
  usage.kept_prefixes = store_->prefixes().size();
  MutexLock lock(mutex_);
  usage.contexts = contexts_.size();
}

}  // namespace varve::light
