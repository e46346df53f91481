// A new plugin's folder, made from the SDK's templates.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace varve::cli {

// INVALID_ARGUMENT: `kind` is no kind of plugin.
absl::Status check_kind(const std::string& kind);

struct NewPlugin {
  std::string kind, name;
  std::string directory;  // made by this; must not exist
};

// The paths written, relative to the directory, sorted. `templates` is share/mri/template of the
// SDK. On an error nothing is left behind. INVALID_ARGUMENT: kind, name or directory will not do.
absl::StatusOr<std::vector<std::string>> write_new_plugin(const NewPlugin& plugin,
                                                          const std::string& templates);

}  // namespace varve::cli
