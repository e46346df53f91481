// What requests are placed by. Internal to core/route.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/route/dispatcher.h"

namespace varve {

// Name of an experiment -> name of an arm -> why it was stopped.
using Stops = std::map<std::string, std::map<std::string, std::string>>;

using SnapshotLanes = std::map<std::string, LaneInfo>;  // by stack name

// What requests are placed by. Never changes: a reload or a stop makes another.
struct Snapshot {
  SnapshotLanes lanes;
  std::shared_ptr<const ServeConfig> config;  // as it was read
  std::shared_ptr<const ApiKeys> keys;        // null: none
  Stops stops;
  std::vector<ExperimentConfig> experiments;  // in effect
};

template <class T>
const T* find_by_name(const std::vector<T>& list, const std::string& name) {
  const auto it =
      std::find_if(list.begin(), list.end(), [&](const T& t) { return t.name == name; });
  return it == list.end() ? nullptr : &*it;
}

std::optional<size_t> arm_with_name(const ExperimentConfig& experiment, const std::string& name);
// "main, int4"
std::string arms_text(const ExperimentConfig& experiment);
// A stopped arm's weight goes to the control.
std::vector<ExperimentConfig> with_stops(std::vector<ExperimentConfig> experiments,
                                         const Stops& stops);

// What stop_arm() logs, and, from there, what is stopped in the versions of `experiments`.
ExperimentEvent stop_event(const ExperimentConfig& experiment, const std::string& arm,
                           const std::string& why, double wall_s);
absl::StatusOr<Stops> logged_stops(const std::string& path,
                                   const std::vector<ExperimentConfig>& experiments);

// Whether lanes and log are there for all that `config` names. `lanes`: names of stacks.
absl::Status check_config(const ServeConfig& config, const std::set<std::string>& lanes,
                          bool has_log);

// Dispatcher::place().
absl::StatusOr<Placement> place_in(const Snapshot& snapshot, const Arrival& arrival);

}  // namespace varve
