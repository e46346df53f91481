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

// One user's share of a pool. Not thread-safe; outlives the memory that is charged to it.
struct PoolAccount {
  uint64_t budget_bytes = 0;  // 0: only the pool's budget counts
  uint64_t used_bytes = 0;
};

// A piece of pool memory, 64-byte aligned, given back by the destructor. Contents are unspecified.
class PoolMemory {
 public:
  PoolMemory() = default;
  PoolMemory(PoolMemory&& other) noexcept { swap(other); }
  PoolMemory& operator=(PoolMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~PoolMemory();

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  friend class Pool;
  PoolMemory(Pool* pool, PoolAccount* account, uint8_t* data, size_t size)
      : pool_(pool), account_(account), data_(data), size_(size) {}
  void swap(PoolMemory& other) noexcept;

  Pool* pool_ = nullptr;
  PoolAccount* account_ = nullptr;
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
  // a budget. When the machine has none the result is empty and `old` stays.
  PoolMemory exchange(PoolMemory& old, size_t size);
  // Allocates and touches `count` pieces so that later ones of that size cost no page fault.
  void warm_up(size_t size, size_t count);

  uint64_t used_bytes() const;
  // Used and spare.
  uint64_t owned_bytes() const;
  uint64_t budget_bytes() const { return budget_bytes_; }

 private:
  friend class PoolMemory;
  uint8_t* take_piece(size_t size);
  void release(uint8_t* data, size_t size);
  void drop_spare_pieces() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t budget_bytes_;
  const uint64_t spare_bytes_max_;
  mutable Mutex mutex_;
  uint64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t spare_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<size_t, std::vector<uint8_t*>> spare_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace varve::light
