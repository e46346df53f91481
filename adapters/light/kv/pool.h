// pool.h: KV memory by the byte. Every byte of an index, body or summary comes from here, against
// one budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "adapters/light/mutex.h"

namespace varve::light {

class Pool;

// One user's share of a pool: all that it holds, in full, shared with others or not. So a user's
// share does not change by what others do; the pool counts each piece once. Not thread-safe;
// outlives the memory that is charged to it.
struct PoolAccount {
  uint64_t budget_bytes = 0;  // 0: only the pool's budget counts
  uint64_t used_bytes = 0;
  int64_t returned_bytes = 0;  // given back to the pool less taken from it; shared pieces not
};

// A hold on a piece of pool memory, 64-byte aligned, given back by the destructor: the piece goes
// back to the pool with its last hold, on any thread. Contents are unspecified at first; a piece
// that is shared is only read.
class PoolMemory {
 public:
  PoolMemory() = default;
  PoolMemory(PoolMemory&& other) noexcept { swap(other); }
  PoolMemory& operator=(PoolMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~PoolMemory() { reset(); }

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  explicit operator bool() const { return data_ != nullptr; }

  // One more hold on the same piece. Empty when the account has no room or this is empty.
  PoolMemory share(PoolAccount* account) const;
  // The same for a kept prefix, which has no account: see Pool::kept_bytes().
  PoolMemory keep() const;
  // Lets go; returns how many bytes went back to the pool.
  uint64_t reset();

 private:
  friend class Pool;
  struct Holds;
  PoolMemory(Pool* pool, PoolAccount* account, Holds* holds, uint8_t* data, size_t size)
      : pool_(pool), account_(account), holds_(holds), data_(data), size_(size) {}
  void swap(PoolMemory& other) noexcept;

  Pool* pool_ = nullptr;
  PoolAccount* account_ = nullptr;
  Holds* holds_ = nullptr;
  bool kept_ = false;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Thread-safe. Freed pieces are kept for the next request of the same size, up to
// `spare_bytes_max`. Pieces in use and spare ones together never exceed the budget.
class Pool {
 public:
  // budget_bytes 0: no limit but the machine's.
  Pool(uint64_t budget_bytes, uint64_t spare_bytes_max);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // An empty PoolMemory when a budget or the machine has no room, or size is 0. With an account
  // the memory is charged to it as well.
  PoolMemory allocate(size_t size, PoolAccount* account = nullptr);
  // A piece of `size` <= old.size() bytes in place of `old`, which becomes empty: needs no room in
  // a budget. When the machine has none, or others hold it too, the result is empty and `old`
  // stays.
  PoolMemory exchange(PoolMemory& old, size_t size);
  // Allocates and touches `count` pieces so that later ones of that size cost no page fault.
  void warm_up(size_t size, size_t count);

  uint64_t used_bytes() const;
  // Used and spare.
  uint64_t owned_bytes() const;
  // Of the pieces that kept prefixes hold, each once; and of those that nobody else holds.
  uint64_t kept_bytes() const;
  uint64_t only_kept_bytes() const;
  uint64_t budget_bytes() const { return budget_bytes_; }
  bool has_room(uint64_t bytes) const;

 private:
  friend class PoolMemory;
  uint8_t* take_piece(size_t size);
  void hold(PoolMemory::Holds& holds, bool kept);
  bool release(PoolMemory::Holds& holds, bool kept, uint8_t* data);
  void count_kept(const PoolMemory::Holds& holds, bool add) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void drop_spare_pieces() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t budget_bytes_;
  const uint64_t spare_bytes_max_;
  mutable Mutex mutex_;
  uint64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t spare_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t only_kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<size_t, std::vector<uint8_t*>> spare_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace varve::light
