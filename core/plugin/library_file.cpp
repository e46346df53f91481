#include "core/plugin/library_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "core/base/limits.h"
#include "core/base/sha256.h"
#include "core/plugin/refusal.h"

namespace varve {
namespace {

namespace fs = std::filesystem;

// Which rule a file or a folder on its way breaks.
class PlaceCheck {
 public:
  PlaceCheck(const std::string& path, const Trust& trust)
      : path_(path), is_strict_(trust.level != TrustLevel::kNone) {}

  absl::Status check(const OpenFile& file) const {
    std::error_code error;
    const fs::path real = fs::read_symlink(absl::StrCat("/proc/self/fd/", file.fd.get()), error);
    const fs::path named = error ? fs::path() : fs::canonical(fs::path(path_).parent_path(), error);
    if (error) return refuse("a file whose place can be found out", error.message(), "");
    const auto [end, ignored] = std::mismatch(named.begin(), named.end(), real.begin(), real.end());
    if (end != named.end()) {
      return refuse("a file of its folder", absl::StrCat("a link to ", real.string()),
                    "Copy the file there, or name the place where it lies.");
    }
    const std::string name = real.string();
    if (const absl::Status status = check_one(name, file.status, false); !status.ok())
      return status;
    return check_folders(real.parent_path());
  }

 private:
  absl::Status check_folders(fs::path folder) const {
    for (bool is_upper = false;; is_upper = true, folder = folder.parent_path()) {
      struct stat status {};
      if (stat(folder.c_str(), &status) != 0)
        return refuse("a folder that is there", folder.string(), "");
      const absl::Status checked = check_one(folder.string(), status, is_upper);
      if (!checked.ok() || !is_strict_ || folder == folder.root_path()) return checked;
    }
  }

  // In a sticky folder further up nobody can put another entry in the place of one that is not
  // theirs.
  absl::Status check_one(const std::string& name, const struct stat& of, bool is_upper) const {
    const bool is_sticky = is_upper && (of.st_mode & S_ISVTX) != 0;
    if ((of.st_mode & S_IWOTH) != 0 && !is_sticky) {
      return refuse("a file and a folder that not everybody may write",
                    absl::StrCat(name, ", which everybody may"), "Take the right away: chmod o-w.");
    }
    if (!is_strict_) return absl::OkStatus();
    if ((of.st_mode & S_IWGRP) != 0 && !is_sticky) {
      return refuse("files and folders that only their owner may write",
                    absl::StrCat(name, ", which its group may"), "Take the right away: chmod g-w.");
    }
    if (of.st_uid == 0 || of.st_uid == geteuid()) return absl::OkStatus();
    return refuse(absl::StrCat("files and folders of root or of user ", geteuid()),
                  absl::StrCat(name, ", of user ", of.st_uid), "Put the plugin elsewhere: chown.");
  }

  absl::Status refuse(const std::string& wants, const std::string& has,
                      const std::string& do_this) const {
    return refused({"MRI-E021", path_, "place", wants, has,
                    absl::StrCat(do_this, do_this.empty() ? "" : " ", "Nothing of it has run.")});
  }

  const std::string& path_;
  const bool is_strict_;
};

}  // namespace

absl::StatusOr<LibraryFile> read_library(const std::string& path, const Trust& trust) {
  const auto bad_file = [&](const std::string& has, const std::string& do_this) {
    return not_found(
        {"MRI-E001", path, "file", "an absolute path to a plugin library", has, do_this});
  };
  if (path.empty() || path[0] != '/') return bad_file("a relative path", "Give the whole path.");
  const absl::StatusOr<OpenFile> open = open_file(path);
  if (!open.ok()) return bad_file(std::string(open.status().message()), "Correct the path.");
  const auto size = static_cast<uint64_t>(open->status.st_size);
  if (size > kPluginFileBytesMax) {
    return bad_file(absl::StrCat(size, " bytes"),
                    absl::StrCat("A plugin has at most ", kPluginFileBytesMax, " bytes."));
  }
  if (const absl::Status placed = PlaceCheck(path, trust).check(*open); !placed.ok()) return placed;
  absl::StatusOr<std::string> bytes = open->read(size);
  if (!bytes.ok()) return bad_file(std::string(bytes.status().message()), "Check the disk.");
  LibraryFile file{path, *std::move(bytes), ""};
  file.sha256 = sha256_hex(file.bytes);
  if (const absl::Status trusted = check_trusted(path, file.bytes, file.sha256, trust);
      !trusted.ok())
    return trusted;
  return file;
}

absl::StatusOr<Descriptor> sealed_copy(const LibraryFile& file) {
  const std::string name = fs::path(file.path).filename().string().substr(0, 200);
  Descriptor fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const auto failed = [&](const char* step) {
    return absl::ResourceExhaustedError(absl::StrCat(
        file.path, ": no sealed copy of it in memory: ", step, ": ", std::strerror(errno)));
  };
  if (fd.get() < 0) return failed("memfd_create");
  for (size_t done = 0; done < file.bytes.size();) {
    const ssize_t n = write(fd.get(), file.bytes.data() + done, file.bytes.size() - done);
    if (n < 0 && errno != EINTR) return failed("write");
    if (n > 0) done += static_cast<size_t>(n);
  }
  constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return failed("F_ADD_SEALS");
  return fd;
}

}  // namespace varve
