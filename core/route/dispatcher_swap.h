// The lanes that a reloaded configuration needs. Internal to core/route.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/route/dispatcher_snapshot.h"

namespace varve {

// What check_config() of `config` may take for granted: stacks that have a lane, or can get one.
std::set<std::string> possible_lanes(const SnapshotLanes& now, const ServeConfig& config,
                                     const StackLoader& loader);

// The lanes in effect for `config`: those of `now`, and another generation for each stack that is
// used and not what it was. Takes as long as loading does. An error, which names the stack, leaves
// no trace: also when `n_left` more generations are not enough, or when an experiment would go on
// in its version with another stack. Adds a line for each lane that comes or goes to `changes`.
absl::StatusOr<SnapshotLanes> next_lanes(const Snapshot& now, const ServeConfig& config,
                                         const StackLoader& loader, uint32_t n_left,
                                         Generations* generations,
                                         std::vector<std::string>* changes);

}  // namespace varve
