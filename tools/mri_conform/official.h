// The package of an official run: a folder that says what was tested, with what, and what came out.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/mri_conform/outcome.h"

namespace varve::conform {

// At most kPluginFileBytesMax bytes; kNotFound says what is there instead.
absl::StatusOr<std::string> read_whole_file(const std::string& path);
absl::Status write_whole_file(const std::string& path, std::string_view text);

// Writes result.json, junit.xml, report.txt and SHA256SUMS into `folder`, which is made and must
// hold no other package.
absl::Status write_package(const std::string& folder, const Outcome& outcome);

// Is the package whole, is every test of the must-pass list of each version in it, and did all
// pass? `plugin`, unless empty, must be the file that was tested.
absl::Status verify_package(const std::string& folder, const std::string& plugin);

}  // namespace varve::conform
