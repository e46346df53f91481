#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace varve::light {

// Random access to the bytes of a file, or of a buffer (tests, fuzzing).
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  // Fills `out` with the bytes at `offset`, whole or not at all: false when the source has fewer,
  // or on a read error.
  virtual bool read_at(uint64_t offset, std::span<std::byte> out) const = 0;
};

// A regular file opened for reading. Reads use pread and never a mapping, so that a file truncated
// after opening is a failed read, not a signal. [any thread: read_at is const and keeps no
// position]
class File : public ByteSource {
 public:
  // Throws ModelError when `path` cannot be opened or is not a regular file.
  explicit File(std::string path);
  ~File() override;
  File(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  File& operator=(File&&) = delete;

  uint64_t size() const override { return size_; }
  bool read_at(uint64_t offset, std::span<std::byte> out) const override;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

// The same over memory that outlives it.
class Memory : public ByteSource {
 public:
  explicit Memory(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  bool read_at(uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace varve::light
