#include "adapters/light/kv/pool.h"

#include <sys/mman.h>

#include <utility>

namespace varve::light {
namespace {

constexpr size_t kPageBytes = 4096;

// Pieces are hundreds of kilobytes: straight from the kernel, so that a freed one really is.
size_t mapped_bytes(size_t size) { return (size + kPageBytes - 1) / kPageBytes * kPageBytes; }

uint8_t* map_piece(size_t size) {
  void* p =
      mmap(nullptr, mapped_bytes(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  madvise(p, mapped_bytes(size), MADV_HUGEPAGE);  // blocks are read at random: fewer TLB misses
  return static_cast<uint8_t*>(p);
}

void unmap_piece(uint8_t* data, size_t size) { munmap(data, mapped_bytes(size)); }

bool fits(uint64_t used, uint64_t more, uint64_t budget) {
  return budget == 0 || (used <= budget && more <= budget - used);
}

}  // namespace

PoolMemory::~PoolMemory() {
  if (data_ == nullptr) return;
  if (account_ != nullptr) account_->used_bytes -= size_;
  pool_->release(data_, size_);
}

void PoolMemory::swap(PoolMemory& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(account_, other.account_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
}

Pool::Pool(uint64_t budget_bytes, uint64_t spare_bytes_max)
    : budget_bytes_(budget_bytes), spare_bytes_max_(spare_bytes_max) {}

Pool::~Pool() {
  MutexLock lock(mutex_);
  drop_spare_pieces();
}

PoolMemory Pool::allocate(size_t size, PoolAccount* account) {
  if (size == 0) return {};
  if (account != nullptr && !fits(account->used_bytes, size, account->budget_bytes)) return {};
  uint8_t* data = take_piece(size);
  if (data == nullptr) return {};
  if (account != nullptr) account->used_bytes += size;
  return PoolMemory(this, account, data, size);
}

// Counted in used_bytes_; null when there is no room.
uint8_t* Pool::take_piece(size_t size) {
  {
    MutexLock lock(mutex_);
    if (!fits(used_bytes_, size, budget_bytes_)) return nullptr;
    used_bytes_ += size;
    const auto at = spare_.find(size);
    if (at != spare_.end() && !at->second.empty()) {
      uint8_t* data = at->second.back();
      at->second.pop_back();
      spare_bytes_ -= size;
      return data;
    }
    if (!fits(used_bytes_, spare_bytes_, budget_bytes_)) drop_spare_pieces();
  }
  uint8_t* data = map_piece(size);
  if (data != nullptr) return data;
  MutexLock lock(mutex_);
  used_bytes_ -= size;
  return nullptr;
}

PoolMemory Pool::exchange(PoolMemory& old, size_t size) {
  uint8_t* data = size > 0 && size <= old.size_ ? map_piece(size) : nullptr;
  if (data == nullptr) return {};
  const size_t less = old.size_ - size;
  {
    MutexLock lock(mutex_);
    used_bytes_ -= less;
  }
  if (old.account_ != nullptr) old.account_->used_bytes -= less;
  unmap_piece(std::exchange(old.data_, nullptr), std::exchange(old.size_, 0));
  return PoolMemory(this, old.account_, data, size);
}

void Pool::warm_up(size_t size, size_t count) {
  std::vector<PoolMemory> held;
  for (size_t i = 0; i < count; ++i) {
    PoolMemory memory = allocate(size);
    if (!memory) break;
    for (size_t at = 0; at < size; at += kPageBytes) memory.data()[at] = 0;
    held.push_back(std::move(memory));
  }
}

uint64_t Pool::used_bytes() const {
  MutexLock lock(mutex_);
  return used_bytes_;
}

uint64_t Pool::owned_bytes() const {
  MutexLock lock(mutex_);
  return used_bytes_ + spare_bytes_;
}

void Pool::release(uint8_t* data, size_t size) {
  {
    MutexLock lock(mutex_);
    used_bytes_ -= size;
    if (spare_bytes_ + size <= spare_bytes_max_ &&
        fits(used_bytes_, spare_bytes_ + size, budget_bytes_)) {
      spare_[size].push_back(data);
      spare_bytes_ += size;
      return;
    }
  }
  unmap_piece(data, size);
}

void Pool::drop_spare_pieces() {
  for (auto& [size, pieces] : spare_) {
    for (uint8_t* data : pieces) unmap_piece(data, size);
  }
  spare_.clear();
  spare_bytes_ = 0;
}

}  // namespace varve::light
