#include "adapters/light/kv/prefix.h"

#include <algorithm>
#include <utility>

namespace varve::light {
namespace {

uint64_t size_of(const KvPrefix& prefix) {
  uint64_t bytes = 0;
  for (const KvBlockMemory& block : prefix.blocks) bytes += block.index.size() + block.body.size();
  for (const PoolMemory& summary : prefix.summaries) bytes += summary.size();
  return bytes;
}

}  // namespace

// Keys are made by a cryptographic hash: any part of one is as good as another.
size_t PrefixCache::Hash::operator()(const mri_prefix_key& key) const {
  size_t hash = 0;
  std::memcpy(&hash, key.bytes, sizeof(hash));
  return hash;
}

PrefixCache::Found PrefixCache::find(std::span<const mri_prefix_key> keys) {
  MutexLock lock(mutex_);
  Found found;
  Place best;
  for (size_t n = keys.size(); n > found.n_blocks; --n) {
    const auto at = by_key_.find(keys[n - 1]);
    if (at == by_key_.end()) continue;
    for (const Place entry : at->second) {
      const size_t n_blocks = fork_blocks(*entry->prefix, n);
      if (n_blocks <= found.n_blocks) continue;
      found = {entry->prefix, n_blocks};
      best = entry;
    }
  }
  if (found.prefix != nullptr) use(best);
  return found;
}

bool PrefixCache::touch(const mri_prefix_key& name, std::span<const mri_prefix_key> keys,
                        bool pinned) {
  MutexLock lock(mutex_);
  const auto named = by_name_.find(name);
  if (named != by_name_.end() && named->second->keys.size() >= keys.size()) {
    named->second->pinned = named->second->pinned || pinned;
    use(named->second);
    return true;
  }
  const auto at = by_key_.find(keys.back());
  if (pinned || at == by_key_.end()) return false;
  for (const Place entry : at->second) {
    if (fork_blocks(*entry->prefix, keys.size()) < keys.size()) continue;
    use(entry);
    return true;
  }
  return false;
}

void PrefixCache::keep(const mri_prefix_key& name, std::span<const mri_prefix_key> keys,
                       std::shared_ptr<KvPrefix> prefix, bool pinned) {
  // What can never stay pushes nothing out.
  if (!pinned && limit_bytes_ != 0 && size_of(*prefix) > limit_bytes_) return;
  std::vector<std::shared_ptr<KvPrefix>> gone;  // freed after the lock
  {
    MutexLock lock(mutex_);
    const auto named = by_name_.find(name);
    if (named != by_name_.end()) {
      pinned = pinned || named->second->pinned;
      remove(named->second, gone);
    }
    for (size_t n = 1; n < keys.size(); ++n) {
      const auto at = by_key_.find(keys[n - 1]);
      if (at == by_key_.end()) break;
      const auto shorter = std::find_if(at->second.begin(), at->second.end(), [&](Place entry) {
        return entry->keys.size() == n && !entry->pinned && fork_blocks(*prefix, n) == n;
      });
      if (shorter != at->second.end()) remove(*shorter, gone);
    }
    entries_.push_front({name, {keys.begin(), keys.end()}, std::move(prefix), pinned});
    by_name_[name] = entries_.begin();
    for (const mri_prefix_key& key : keys) by_key_[key].push_back(entries_.begin());
  }
  gone.clear();
  while (limit_bytes_ != 0 && pool_.kept_bytes() > limit_bytes_ && drop_oldest()) {
  }
}

void PrefixCache::forget(const mri_prefix_key& name) {
  std::vector<std::shared_ptr<KvPrefix>> gone;
  MutexLock lock(mutex_);
  const auto named = by_name_.find(name);
  if (named != by_name_.end()) remove(named->second, gone);
}

void PrefixCache::use(Place entry) { entries_.splice(entries_.begin(), entries_, entry); }

void PrefixCache::remove(Place entry, std::vector<std::shared_ptr<KvPrefix>>& gone) {
  for (const mri_prefix_key& key : entry->keys) {
    const auto at = by_key_.find(key);
    std::erase(at->second, entry);
    if (at->second.empty()) by_key_.erase(at);
  }
  by_name_.erase(entry->name);
  gone.push_back(std::move(entry->prefix));
  entries_.erase(entry);
}

// Null when all that is left is pinned.
std::shared_ptr<KvPrefix> PrefixCache::take_oldest() {
  std::vector<std::shared_ptr<KvPrefix>> gone;
  MutexLock lock(mutex_);
  for (Place entry = entries_.end(); entry != entries_.begin();) {
    if ((--entry)->pinned) continue;
    remove(entry, gone);
    return gone[0];
  }
  return nullptr;
}

bool PrefixCache::drop_oldest() { return take_oldest() != nullptr; }

bool PrefixCache::make_room(uint64_t bytes) {
  bool any = false;
  while (!pool_.has_room(bytes) && drop_oldest()) any = true;
  return any;
}

uint64_t PrefixCache::drop(uint64_t wanted_bytes) {
  uint64_t freed = 0;
  while (freed < wanted_bytes) {
    const std::shared_ptr<KvPrefix> prefix = take_oldest();
    if (prefix == nullptr) break;
    if (prefix.use_count() > 1) continue;  // a context is being made from it
    for (KvBlockMemory& block : prefix->blocks) freed += block.index.reset() + block.body.reset();
    for (PoolMemory& summary : prefix->summaries) freed += summary.reset();
  }
  return freed;
}

size_t PrefixCache::size() const {
  MutexLock lock(mutex_);
  return entries_.size();
}

}  // namespace varve::light
