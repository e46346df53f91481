#include "adapters/light/kv/pool.h"

#include <sys/mman.h>

#include <memory>
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

// Guarded by the pool's mutex, so that whoever lets go last has seen what all others did.
struct PoolMemory::Holds {
  uint32_t n = 1;
  uint32_t kept = 0;  // of these
  size_t size = 0;
};

PoolMemory PoolMemory::share(PoolAccount* account) const {
  if (data_ == nullptr || !fits(account->used_bytes, size_, account->budget_bytes)) return {};
  account->used_bytes += size_;
  pool_->hold(*holds_, false);
  return PoolMemory(pool_, account, holds_, data_, size_);
}

PoolMemory PoolMemory::keep() const {
  if (data_ == nullptr) return {};
  pool_->hold(*holds_, true);
  PoolMemory memory(pool_, nullptr, holds_, data_, size_);
  memory.kept_ = true;
  return memory;
}

uint64_t PoolMemory::reset() {
  if (data_ == nullptr) return 0;
  const bool last = pool_->release(*holds_, kept_, data_);
  if (last) delete holds_;
  const uint64_t returned = last ? size_ : 0;
  if (account_ != nullptr) {
    account_->used_bytes -= size_;
    account_->returned_bytes += static_cast<int64_t>(returned);
  }
  data_ = nullptr;
  size_ = 0;
  return returned;
}

void PoolMemory::swap(PoolMemory& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(account_, other.account_);
  std::swap(holds_, other.holds_);
  std::swap(kept_, other.kept_);
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
  auto holds = std::make_unique<PoolMemory::Holds>(PoolMemory::Holds{1, 0, size});
  uint8_t* data = take_piece(size);
  if (data == nullptr) return {};
  if (account != nullptr) {
    account->used_bytes += size;
    account->returned_bytes -= static_cast<int64_t>(size);
  }
  return PoolMemory(this, account, holds.release(), data, size);
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
  if (size == 0 || size > old.size_) return {};
  const size_t less = old.size_ - size;
  {
    MutexLock lock(mutex_);
    if (old.holds_->n > 1) return {};
  }
  uint8_t* data = map_piece(size);
  if (data == nullptr) return {};
  {
    MutexLock lock(mutex_);
    used_bytes_ -= less;
  }
  if (old.account_ != nullptr) {
    old.account_->used_bytes -= less;
    old.account_->returned_bytes += static_cast<int64_t>(less);
  }
  unmap_piece(std::exchange(old.data_, data), std::exchange(old.size_, size));
  old.holds_->size = size;
  return std::move(old);
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

uint64_t Pool::kept_bytes() const {
  MutexLock lock(mutex_);
  return kept_bytes_;
}

uint64_t Pool::only_kept_bytes() const {
  MutexLock lock(mutex_);
  return only_kept_bytes_;
}

bool Pool::has_room(uint64_t bytes) const {
  MutexLock lock(mutex_);
  return fits(used_bytes_, bytes, budget_bytes_);
}

// Takes what `holds` says out of the counts of kept bytes, or puts it in.
void Pool::count_kept(const PoolMemory::Holds& holds, bool add) {
  const auto count = [&](uint64_t& bytes) {
    bytes = add ? bytes + holds.size : bytes - holds.size;
  };
  if (holds.kept > 0) count(kept_bytes_);
  if (holds.kept > 0 && holds.kept == holds.n) count(only_kept_bytes_);
}

void Pool::hold(PoolMemory::Holds& holds, bool kept) {
  MutexLock lock(mutex_);
  count_kept(holds, false);
  ++holds.n;
  if (kept) ++holds.kept;
  count_kept(holds, true);
}

// True when that was the last hold: the piece has gone back.
bool Pool::release(PoolMemory::Holds& holds, bool kept, uint8_t* data) {
  const size_t size = holds.size;
  {
    MutexLock lock(mutex_);
    count_kept(holds, false);
    --holds.n;
    if (kept) --holds.kept;
    count_kept(holds, true);
    if (holds.n > 0) return false;
    used_bytes_ -= size;
    if (spare_bytes_ + size <= spare_bytes_max_ &&
        fits(used_bytes_, spare_bytes_ + size, budget_bytes_)) {
      spare_[size].push_back(data);
      spare_bytes_ += size;
      return true;
    }
  }
  unmap_piece(data, size);
  return true;
}

void Pool::drop_spare_pieces() {
  for (auto& [size, pieces] : spare_) {
    for (uint8_t* data : pieces) unmap_piece(data, size);
  }
  spare_.clear();
  spare_bytes_ = 0;
}

}  // namespace varve::light
