#include "core/base/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace varve {

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<std::string> OpenFile::read(uint64_t bytes_max) const {
  std::string bytes(bytes_max, '\0');
  uint64_t done = 0;
  while (done < bytes_max) {
    const ssize_t n = ::read(fd.get(), bytes.data() + done, bytes_max - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return absl::UnavailableError(absl::StrCat("an unreadable file: ", std::strerror(errno)));
    if (n == 0) break;
    done += static_cast<uint64_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

absl::StatusOr<OpenFile> open_file(const std::string& path) {
  OpenFile file{Descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)), {}};
  if (file.fd.get() < 0 || fstat(file.fd.get(), &file.status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return absl::NotFoundError("no such file");
    return absl::NotFoundError(absl::StrCat("an unreadable file: ", std::strerror(errno)));
  }
  if (!S_ISREG(file.status.st_mode))
    return absl::NotFoundError("something that is not a regular file");
  return file;
}

absl::StatusOr<std::string> read_file(const std::string& path, uint64_t bytes_max) {
  const absl::StatusOr<OpenFile> file = open_file(path);
  if (!file.ok()) return file.status();
  const auto size = static_cast<uint64_t>(file->status.st_size);
  if (size <= bytes_max) return file->read(size);
  return absl::OutOfRangeError(absl::StrCat(size, " bytes, more than ", bytes_max));
}

}  // namespace varve
