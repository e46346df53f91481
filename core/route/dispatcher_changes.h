// What a reload changes. Internal to core/route.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/serve_config.h"

namespace varve {

// "class.vip.priority: 1 -> 10", a line per change. kFailedPrecondition, with the line, for what
// needs a restart (stacks too, unless may_swap), or a new version of an experiment. Salts are not
// told.
absl::StatusOr<std::vector<std::string>> config_changes(const ServeConfig& from,
                                                        const ServeConfig& to, bool may_swap);

// "main:95 int4:5"
std::string weights_text(const ExperimentConfig& experiment);

}  // namespace varve
