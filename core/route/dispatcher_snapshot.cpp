#include "core/route/dispatcher_snapshot.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/config/value.h"
#include "core/route/experiment_record.h"

namespace varve {
namespace {

const ExperimentConfig* experiment_of_class(const Snapshot& snapshot, const std::string& name) {
  const auto& all = snapshot.experiments;
  const auto it = std::find_if(all.begin(), all.end(),
                               [&](const ExperimentConfig& e) { return e.class_name == name; });
  return it == all.end() ? nullptr : &*it;
}

absl::StatusOr<std::string> class_of(const Snapshot& snapshot, const Arrival& arrival) {
  const std::string& tier = arrival.service_tier;
  if (snapshot.keys != nullptr) return snapshot.keys->class_for_tier(arrival.who, tier);
  if (tier.empty() || tier == "auto" || tier == "default") return arrival.who.class_name;
  return absl::PermissionDeniedError(absl::StrCat("service_tier: found ", quoted(tier),
                                                  "; expected auto or default: without a key no "
                                                  "other may be chosen"));
}

absl::Status choose_arm(const Snapshot& snapshot, const Arrival& arrival, Placement& placement) {
  const std::string& forced = arrival.forced_arm;
  if (!forced.empty() && arrival.who.scope != Scope::kAdmin) {
    return absl::PermissionDeniedError(
        "found a wish for an arm; expected a key of scope admin, which alone may choose one");
  }
  const ExperimentConfig* experiment = experiment_of_class(snapshot, placement.class_name);
  if (experiment == nullptr) {
    if (forced.empty()) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat("found the arm ", quoted(forced), "; class ",
                                            placement.class_name, " has no experiment"));
  }
  placement.assignment =
      assign(*experiment, experiment_unit(arrival.who.tenant, arrival.conversation), absl::Now());
  if (!forced.empty()) {
    const std::optional<size_t> arm = arm_with_name(*experiment, forced);
    if (!arm.has_value()) {
      return absl::NotFoundError(absl::StrCat("found the arm ", quoted(forced),
                                              "; expected one of ", arms_text(*experiment)));
    }
    placement.assignment.arm = *arm;
    placement.assignment.forced = true;
  }
  placement.experiment = experiment->name;
  placement.experiment_version = experiment->version;
  placement.arm = arm_name(*experiment, placement.assignment.arm);
  placement.stack = experiment->arms[placement.assignment.arm].stack;
  return absl::OkStatus();
}

}  // namespace

std::optional<size_t> arm_with_name(const ExperimentConfig& experiment, const std::string& name) {
  for (size_t i = 0; i < experiment.arms.size(); ++i) {
    if (arm_name(experiment, i) == name) return i;
  }
  return std::nullopt;
}

std::string arms_text(const ExperimentConfig& experiment) {
  return absl::StrJoin(arm_names(experiment), ", ");
}

std::vector<ExperimentConfig> with_stops(std::vector<ExperimentConfig> experiments,
                                         const Stops& stops) {
  for (ExperimentConfig& experiment : experiments) {
    const auto of_experiment = stops.find(experiment.name);
    if (of_experiment == stops.end()) continue;
    for (size_t i = 1; i < experiment.arms.size(); ++i) {
      if (of_experiment->second.count(arm_name(experiment, i)) == 0) continue;
      experiment.arms[0].weight += std::exchange(experiment.arms[i].weight, 0);
    }
  }
  return experiments;
}

absl::Status check_config(const ServeConfig& config, const std::set<std::string>& lanes,
                          bool has_log) {
  const auto check_stack = [&](const std::string& table, const std::string& stack) {
    if (lanes.count(stack) != 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(table, ": found the stack ", quoted(stack),
                                                   ", which has no lane; expected one that has"));
  };
  for (const ClassConfig& one : config.classes) {
    absl::Status status = check_stack("class." + one.name, one.stack);
    if (!status.ok()) return status;
  }
  for (const ExperimentConfig& experiment : config.experiments) {
    if (!has_log) {
      return absl::FailedPreconditionError(absl::StrCat("experiment.", experiment.name,
                                                        ": found no log of exposures; expected "
                                                        "server.experiment_log_path at the start"));
    }
    for (const ExperimentArm& arm : experiment.arms) {
      absl::Status status = check_stack("experiment." + experiment.name, arm.stack);
      if (!status.ok()) return status;
    }
  }
  if (find_by_name(config.classes, config.server.default_class) == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "server.default_class: found ", quoted(config.server.default_class), "; expected a class"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Placement> place_in(const Snapshot& snapshot, const Arrival& arrival) {
  absl::StatusOr<std::string> name = class_of(snapshot, arrival);
  if (!name.ok()) return name.status();
  const ClassConfig* one = find_by_name(snapshot.config->classes, *name);
  if (one == nullptr) {
    return absl::PermissionDeniedError(absl::StrCat(
        "found the class ", quoted(*name), " for this key, which is gone; expected one of ",
        absl::StrJoin(class_names(*snapshot.config), ", ")));
  }
  Placement placement;
  placement.class_name = one->name;
  placement.stack = one->stack;
  placement.priority = one->priority;
  placement.max_prompt_tokens = one->max_prompt_tokens;
  placement.max_answer_tokens = one->max_answer_tokens;
  placement.deadline = absl::Now() + one->deadline;
  const absl::Status status = choose_arm(snapshot, arrival, placement);
  if (!status.ok()) return status;
  const LaneInfo& lane = snapshot.lanes.at(placement.stack);
  placement.lane = lane.lane;
  placement.digest = lane.digest;
  placement.generation = lane.generation;
  return placement;
}

}  // namespace varve
