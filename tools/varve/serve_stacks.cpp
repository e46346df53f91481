#include "tools/varve/serve_stacks.h"

#include <sys/stat.h>

#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/sha256.h"
#include "core/route/dispatcher.h"
#include "tools/varve/chosen_plugins.h"
#include "tools/varve/model.h"

namespace varve::cli {
namespace {

std::set<std::string> used_stacks(const ServeConfig& config) {
  std::set<std::string> used = {kMainStack};
  for (const ClassConfig& entry : config.classes) used.insert(entry.stack);
  for (const ExperimentConfig& experiment : config.experiments) {
    for (const ExperimentArm& arm : experiment.arms) used.insert(arm.stack);
  }
  return used;
}

// Plugins with their versions and values, and the model file's identity: memory made by one stack
// is never taken for another's.
std::string digest_of(const Profile& profile, const std::vector<ChosenPlugin>& plugins) {
  std::string text;
  const auto add = [&text](std::string_view part) {
    absl::StrAppend(&text, part.size(), ":", absl::string_view(part.data(), part.size()));
  };
  for (const ChosenPlugin& plugin : plugins) {
    add(plugin.library.info.id);
    add(plugin.library.info.version);
    for (const auto& [key, setting] : plugin.values) {
      add(key);
      add(to_text(setting.value));
    }
  }
  const absl::StatusOr<std::string> path = profile.path("model", "path");
  struct stat file {};
  if (path.ok() && stat(path->c_str(), &file) == 0) {
    add(absl::StrCat(file.st_dev, " ", file.st_ino, " ", file.st_size, " ", file.st_mtim.tv_sec,
                     ".", file.st_mtim.tv_nsec));
  }
  return sha256_hex(text);
}

absl::Status start_lane(const ServeConfig& config, const StackConfig& stack, ThreadPool& threads,
                        Turnstile& turnstile, const LogSink& log, Lanes& lanes) {
  absl::StatusOr<std::vector<ChosenPlugin>> plugins = chosen_plugins(stack.profile);
  if (!plugins.ok()) return plugins.status();
  const std::string digest = digest_of(stack.profile, *plugins);
  absl::StatusOr<std::unique_ptr<Stack>> loaded =
      load_chosen_stack(*std::move(plugins), threads, log);
  if (!loaded.ok()) return loaded.status();
  absl::StatusOr<std::unique_ptr<Lane>> lane =
      Lane::start(lane_options(stack, config.classes, digest), *std::move(loaded), &turnstile);
  if (!lane.ok()) return lane.status();
  lanes.by_stack.emplace(stack.name, *std::move(lane));
  lanes.digests.emplace(stack.name, digest);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Lanes> start_lanes(const ServeConfig& config, ThreadPool& threads,
                                  Turnstile& turnstile, const LogSink& log) {
  const std::set<std::string> used = used_stacks(config);
  Lanes lanes;
  for (const StackConfig& stack : config.stacks) {
    if (used.count(stack.name) == 0) continue;
    log(LogLevel::kInfo, "host", absl::StrCat("loading stack ", stack.name));
    const absl::Status status = start_lane(config, stack, threads, turnstile, log, lanes);
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("stack ", stack.name, ": ", status.message()));
    }
  }
  return lanes;
}

}  // namespace varve::cli
