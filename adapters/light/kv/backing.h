// backing.h: where the encoded bodies of cold blocks stay so that they can be read again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "adapters/light/mutex.h"

namespace varve::light {

enum class BackingKind { kNone, kRam, kFile };

// Fixed-size slots. A slot is read only, shared by whoever holds it, and given back with its last
// holder. Thread-safe.
//   kNone  holds nothing: a block that goes cold keeps only its summary
//   kRam   anonymous memory outside the KV budget
//   kFile  an unlinked file in `directory`, written with pwrite (a full disk is an error, not a
//   signal) and read through a
//          shared mapping, so that the kernel's page cache decides what stays in memory
class Backing {
 public:
  using Slot = std::shared_ptr<const uint8_t>;  // must not outlive the backing

  // Throws mri::Error when the file cannot be made.
  Backing(BackingKind kind, std::string directory, size_t slot_bytes, uint64_t limit_bytes);
  ~Backing();
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;

  BackingKind kind() const { return kind_; }
  size_t slot_bytes() const { return slot_bytes_; }

  // Copies slot_bytes bytes in. Throws mri::Error: MRI_E_NOMEM past the limit, MRI_E_DEVICE when
  // the disk fails.
  Slot put(const uint8_t* data);
  // Asks the kernel to bring the slot in soon.
  void prewarm(const uint8_t* slot) const;

  uint64_t used_bytes() const;

 private:
  uint8_t* take(uint64_t& offset);
  void release(const uint8_t* slot);
  void grow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const BackingKind kind_;
  const std::string directory_;
  const size_t slot_bytes_;
  const size_t slot_stride_;
  const uint64_t limit_bytes_;
  int file_ = -1;
  mutable Mutex mutex_;
  std::map<uint8_t*, uint64_t, std::less<>> extents_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint8_t*> free_ ABSL_GUARDED_BY(mutex_);
  uint64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace varve::light
