#include "adapters/light/kv/backing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "mri/sdk/error.hpp"

namespace varve::light {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kSlotsPerExtent = 32;

std::string reason() { return std::strerror(errno); }

int open_unlinked(const std::string& directory) {
  std::string path = directory + "/varve-backing-XXXXXX";
  const int file = mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) {
    throw mri::Error(MRI_E_DEVICE, "backing file: cannot create one in '" + directory +
                                       "': " + reason() +
                                       "; set runtime.backing_dir to a writable directory");
  }
  unlink(path.c_str());
  return file;
}

}  // namespace

Backing::Backing(BackingKind kind, std::string directory, size_t slot_bytes, uint64_t limit_bytes)
    : kind_(kind),
      directory_(std::move(directory)),
      slot_bytes_(slot_bytes),
      slot_stride_((slot_bytes + kPageBytes - 1) / kPageBytes * kPageBytes),
      limit_bytes_(limit_bytes) {
  if (kind_ == BackingKind::kFile) file_ = open_unlinked(directory_);
}

Backing::~Backing() {
  MutexLock lock(mutex_);
  for (const auto& [base, offset] : extents_) munmap(base, slot_stride_ * kSlotsPerExtent);
  if (file_ >= 0) close(file_);
}

void Backing::grow() {
  const size_t bytes = slot_stride_ * kSlotsPerExtent;
  const uint64_t offset = extents_.size() * static_cast<uint64_t>(bytes);
  void* base = MAP_FAILED;
  if (kind_ == BackingKind::kFile) {
    // Blocks are reserved now: a later write into the mapping's range cannot run out of disk.
    const int failed =
        posix_fallocate(file_, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    if (failed != 0) {
      throw mri::Error(MRI_E_DEVICE, "backing file in '" + directory_ + "': cannot grow to " +
                                         std::to_string(offset + bytes) +
                                         " bytes: " + std::strerror(failed));
    }
    base = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file_, static_cast<off_t>(offset));
  } else {
    base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (base == MAP_FAILED)
    throw mri::Error(MRI_E_NOMEM,
                     "backing: cannot map " + std::to_string(bytes) + " bytes: " + reason());
  extents_.emplace(static_cast<uint8_t*>(base), offset);
  for (size_t i = kSlotsPerExtent; i-- > 0;)
    free_.push_back(static_cast<uint8_t*>(base) + i * slot_stride_);
}

// A free slot, and where it lies in the file.
uint8_t* Backing::take(uint64_t& offset) {
  MutexLock lock(mutex_);
  if (limit_bytes_ != 0 && used_bytes_ + slot_bytes_ > limit_bytes_) {
    throw mri::Error(MRI_E_NOMEM, "backing: " + std::to_string(used_bytes_) +
                                      " bytes used, the limit is " + std::to_string(limit_bytes_) +
                                      "; raise runtime.backing_limit_mb");
  }
  if (free_.empty()) grow();
  uint8_t* slot = free_.back();
  free_.pop_back();
  used_bytes_ += slot_bytes_;
  // The extent with the largest base that is not behind the slot.
  const auto& [base, file_offset] = *std::prev(extents_.upper_bound(slot));
  offset = file_offset + static_cast<uint64_t>(slot - base);
  return slot;
}

Backing::Slot Backing::put(const uint8_t* data) {
  uint64_t offset = 0;
  uint8_t* to = take(offset);
  Slot slot(to, [this](const uint8_t* gone) { release(gone); });
  if (kind_ == BackingKind::kRam) {
    std::memcpy(to, data, slot_bytes_);
    return slot;
  }
  for (size_t done = 0; done < slot_bytes_;) {
    const ssize_t n =
        pwrite(file_, data + done, slot_bytes_ - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw mri::Error(MRI_E_DEVICE,
                       "backing file in '" + directory_ + "': write failed: " + reason());
    }
    done += static_cast<size_t>(n);
  }
  return slot;
}

void Backing::release(const uint8_t* slot) {
  // What many contexts once needed is not kept from the machine for ever.
  if (kind_ == BackingKind::kRam) madvise(const_cast<uint8_t*>(slot), slot_stride_, MADV_DONTNEED);
  MutexLock lock(mutex_);
  free_.push_back(const_cast<uint8_t*>(slot));
  used_bytes_ -= slot_bytes_;
}

void Backing::prewarm(const uint8_t* slot) const {
  if (kind_ == BackingKind::kFile) madvise(const_cast<uint8_t*>(slot), slot_stride_, MADV_WILLNEED);
}

uint64_t Backing::used_bytes() const {
  MutexLock lock(mutex_);
  return used_bytes_;
}

}  // namespace varve::light
