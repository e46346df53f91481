// The file of a plugin library: opened once, checked, read. What is loaded later are these bytes.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/base/file.h"
#include "core/plugin/trust.h"

namespace varve {

struct LibraryFile {
  std::string path, bytes, sha256;
};

// `path` is absolute. Refuses what is no regular file of a plugin's size (MRI-E001); a file in a
// place where others could put one (MRI-E021: always when everybody may write the file or its
// folder, or when a symbolic link leads out of its folder; from TrustLevel::kHash on also when the
// file or a folder above it belongs to another user than root and this process's, or others may
// write it, except sticky folders further up); what is not trusted (MRI-E022, MRI-E023).
absl::StatusOr<LibraryFile> read_library(const std::string& path, const Trust& trust);

// A descriptor of a nameless copy that nobody can change any more.
absl::StatusOr<Descriptor> sealed_copy(const LibraryFile& file);

}  // namespace varve
