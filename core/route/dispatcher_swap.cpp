#include "core/route/dispatcher_swap.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace varve {
namespace {

absl::Status of_stack(const std::string& stack, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("stack ", stack, ": ", status.message()));
}

// What is compared under one version of an experiment stays what it is.
absl::Status check_experiments(const Snapshot& now, const ServeConfig& config,
                               const std::string& stack) {
  for (const ExperimentConfig& experiment : config.experiments) {
    const ExperimentConfig* before = find_by_name(now.experiments, experiment.name);
    if (before == nullptr || before->version != experiment.version) continue;
    for (const ExperimentArm& arm : experiment.arms) {
      if (arm.stack != stack) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("found another plugin, parameter or model in it, which experiment.",
                       experiment.name, " compares; expected a higher version of the experiment"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::set<std::string> possible_lanes(const SnapshotLanes& now, const ServeConfig& config,
                                     const StackLoader& loader) {
  std::set<std::string> names;
  if (loader.start) {
    for (const StackConfig& stack : config.stacks) names.insert(stack.name);
  } else {
    for (const auto& [name, lane] : now) names.insert(name);
  }
  return names;
}

absl::StatusOr<SnapshotLanes> next_lanes(const Snapshot& now, const ServeConfig& config,
                                         const StackLoader& loader, uint32_t n_left,
                                         Generations* generations,
                                         std::vector<std::string>* changes) {
  if (!loader.start) return now.lanes;
  SnapshotLanes next;
  const std::set<std::string> used = used_stacks(config);
  for (const StackConfig& stack : config.stacks) {
    if (used.count(stack.name) == 0) continue;
    const auto before = now.lanes.find(stack.name);
    const bool is_new = before == now.lanes.end();
    const absl::StatusOr<std::string> digest = loader.digest(stack);
    if (!digest.ok()) return of_stack(stack.name, digest.status());
    if (!is_new && before->second.digest == *digest) {
      next.insert(*before);
      continue;
    }
    if (const absl::Status status = check_experiments(now, config, stack.name); !status.ok())
      return of_stack(stack.name, status);
    if (n_left-- == 0) {
      return of_stack(stack.name,
                      absl::FailedPreconditionError(absl::StrCat(
                          "found ", kGenerationsMax,
                          " generations loaded since the start, the "
                          "most that a process takes, since none is ever unloaded; expected a "
                          "restart")));
    }
    absl::StatusOr<StartedLane> started = loader.start(config, stack);
    if (!started.ok()) return of_stack(stack.name, started.status());
    const LaneInfo& lane =
        next.emplace(stack.name, generations->add(stack.name, std::move(started->lane),
                                                  std::move(started->digest)))
            .first->second;
    changes->push_back(absl::StrCat("stack ", stack.name, ": generation ", lane.generation,
                                    is_new ? "" : ", the one before ends with its last user"));
  }
  for (const auto& [name, lane] : now.lanes) {
    if (next.count(name) == 0)
      changes->push_back(absl::StrCat("stack ", name, ": ends with its last user"));
  }
  return next;
}

LaneOptions lane_options(const StackConfig& stack, const std::vector<ClassConfig>& classes,
                         std::string digest) {
  LaneOptions options;
  options.name = stack.name;
  options.concurrency = stack.concurrency;
  options.concurrency_max = stack.concurrency_max;
  options.queue_max = stack.queue_max;
  options.stall_max = stack.stall_max;
  options.step_tokens_max = stack.step_tokens_max;
  options.step_ms_max = stack.step_ms_max;
  options.peak_queue_percent = stack.peak_queue_percent;
  for (const ClassConfig& one : classes) {
    if (one.yields_summaries_at_peak) options.peak_classes.push_back(one.name);
  }
  options.digest = std::move(digest);
  return options;
}

}  // namespace varve
