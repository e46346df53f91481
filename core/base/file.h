// Reading a file once: what was opened is what is looked at and read, whatever its name means
// later.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace varve {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& from) noexcept : fd_(from.release()) {}
  Descriptor& operator=(Descriptor&& from) noexcept {
    std::swap(fd_, from.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

struct OpenFile {
  Descriptor fd;
  struct stat status;
  // Up to bytes_max bytes from where the last read ended; fewer at the end of the file.
  absl::StatusOr<std::string> read(uint64_t bytes_max) const;
};

// A regular file; does not wait for the other end of a pipe. The error is only what is there
// instead, as "no such file".
absl::StatusOr<OpenFile> open_file(const std::string& path);

// The whole of it; a larger one is an error.
absl::StatusOr<std::string> read_file(const std::string& path, uint64_t bytes_max);

}  // namespace varve
