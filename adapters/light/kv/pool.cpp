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

}  // namespace

PoolMemory::~PoolMemory() {
  if (data_ != nullptr) pool_->release(data_, size_);
}

void PoolMemory::swap(PoolMemory& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
}

Pool::Pool(uint64_t budget_bytes, uint64_t spare_bytes_max)
    : budget_bytes_(budget_bytes), spare_bytes_max_(spare_bytes_max) {}

Pool::~Pool() {
  MutexLock lock(mutex_);
  for (auto& [size, pieces] : spare_) {
    for (uint8_t* data : pieces) unmap_piece(data, size);
  }
}

PoolMemory Pool::allocate(size_t size) {
  uint8_t* data = nullptr;
  {
    MutexLock lock(mutex_);
    if (budget_bytes_ != 0 && (size > budget_bytes_ || used_bytes_ > budget_bytes_ - size))
      return {};
    used_bytes_ += size;
    auto& pieces = spare_[size];
    if (!pieces.empty()) {
      data = pieces.back();
      pieces.pop_back();
      spare_bytes_ -= size;
    }
  }
  if (data == nullptr) data = map_piece(size);
  if (data == nullptr) {
    MutexLock lock(mutex_);
    used_bytes_ -= size;
    return {};
  }
  PoolMemory memory;
  memory.pool_ = this;
  memory.data_ = data;
  memory.size_ = size;
  return memory;
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

void Pool::release(uint8_t* data, size_t size) {
  {
    MutexLock lock(mutex_);
    used_bytes_ -= size;
    if (spare_bytes_ + size <= spare_bytes_max_) {
      spare_[size].push_back(data);
      spare_bytes_ += size;
      return;
    }
  }
  unmap_piece(data, size);
}

}  // namespace varve::light
