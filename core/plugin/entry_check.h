// The checks of a plugin's entry: data only, no call into the plugin.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/plugin/library.h"
#include "mri/entry.h"

namespace varve {

// What the entry says (all but `name`), with the version that both sides speak. `kind` "" takes any
// kind. A pointer in the entry that is neither null nor valid cannot be detected.
absl::StatusOr<PluginInfo> checked_entry(const mri_plugin_entry& entry, const std::string& path,
                                         std::string_view kind, VersionRange host);

}  // namespace varve
