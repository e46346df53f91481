// prefix.h: prefixes of texts that outlive the contexts which computed them.
//
// A prefix is stored whole, as its context had it, under the key of each of its blocks: the longest
// key that a text shares with any of them finds it. Its memory is shared with the contexts that
// have it too. The least recently used go when they exceed their limit or when memory is short;
// pinned ones stay.
#pragma once

#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "adapters/light/kv/block.h"
#include "adapters/light/kv/pool.h"
#include "adapters/light/mutex.h"
#include "mri/ext/memory.h"

namespace varve::light {

// Thread-safe.
class PrefixCache {
 public:
  // limit_bytes: of pool memory that kept prefixes hold, each piece once; 0: none but the pool's.
  // Pinned prefixes count and may exceed it.
  PrefixCache(Pool& pool, uint64_t limit_bytes) : pool_(pool), limit_bytes_(limit_bytes) {}

  struct Found {
    std::shared_ptr<const KvPrefix> prefix;  // null: none
    size_t n_blocks = 0;                     // to go on from
  };
  Found find(std::span<const mri_prefix_key> keys);

  // Is the prefix of these blocks kept already, under this name or as part of a longer one? Then it
  // is now the most recently used. A pinned prefix has a name of its own.
  bool touch(const mri_prefix_key& name, std::span<const mri_prefix_key> keys, bool pinned);
  // Keeps a prefix of keys.size() blocks under a name. Shorter ones that it stands for as well go,
  // unless they are pinned.
  void keep(const mri_prefix_key& name, std::span<const mri_prefix_key> keys,
            std::shared_ptr<KvPrefix> prefix, bool pinned);
  void forget(const mri_prefix_key& name);

  // Drops prefixes until the pool has room for so many bytes. False when there was none to drop.
  bool make_room(uint64_t bytes);
  // Drops prefixes until so many bytes have gone back to the pool, or none is left. Returns how
  // many have.
  uint64_t drop(uint64_t wanted_bytes);
  bool drop_oldest();

  size_t size() const;

 private:
  struct Hash {
    size_t operator()(const mri_prefix_key& key) const;
  };
  struct Same {
    bool operator()(const mri_prefix_key& a, const mri_prefix_key& b) const {
      return std::memcmp(a.bytes, b.bytes, sizeof(a.bytes)) == 0;
    }
  };
  struct Entry {
    mri_prefix_key name;
    std::vector<mri_prefix_key> keys;  // one per block
    std::shared_ptr<KvPrefix> prefix;
    bool pinned;
  };
  using Place = std::list<Entry>::iterator;

  void use(Place entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void remove(Place entry, std::vector<std::shared_ptr<KvPrefix>>& gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<KvPrefix> take_oldest();

  Pool& pool_;
  const uint64_t limit_bytes_;
  mutable Mutex mutex_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // most recently used first
  std::unordered_map<mri_prefix_key, Place, Hash, Same> by_name_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<mri_prefix_key, std::vector<Place>, Hash, Same> by_key_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace varve::light
