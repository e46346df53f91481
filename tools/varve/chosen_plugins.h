// The plugins that a profile names, found and described, with the values they would get. Nothing of
// them is started.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/profile.h"
#include "core/plugin/isolation.h"
#include "core/plugin/library.h"

namespace varve::cli {

struct ChosenPlugin {
  std::string table;      // also its kind
  PluginLibrary library;  // of one that gets its own process: no entry
  PluginValues values;
  Isolation isolation;
  Trust trust;
};

// [plugins] directories, or the folder beside the program.
absl::StatusOr<std::vector<std::string>> plugin_directories(const Profile& profile);

// In the order of profile_tables(). A kind whose plugin is "none" is left out, except the runtime.
absl::StatusOr<std::vector<ChosenPlugin>> chosen_plugins(const Profile& profile);

}  // namespace varve::cli
