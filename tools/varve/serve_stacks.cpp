#include "tools/varve/serve_stacks.h"

#include <sys/stat.h>

#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/sha256.h"
#include "core/engine/prefix_keys.h"
#include "core/route/dispatcher.h"
#include "tools/varve/chosen_plugins.h"
#include "tools/varve/model.h"

namespace varve::cli {
namespace {

// Plugins with their files, values and places, and the model file's identity: memory made by one
// stack is never taken for another's.
std::string digest_of(const Profile& profile, const std::vector<ChosenPlugin>& plugins) {
  std::string text;
  const auto add = [&text](std::string_view part) {
    absl::StrAppend(&text, part.size(), ":", absl::string_view(part.data(), part.size()));
  };
  for (const ChosenPlugin& plugin : plugins) {
    add(plugin.library.info.id);
    add(plugin.library.info.version);
    add(plugin.library.info.sha256);
    const Isolation& isolation = plugin.isolation;
    add(absl::StrCat(isolation.is_worker, " ", isolation.deadline_ms, " ", isolation.memory_mb));
    add(isolation.fallback);
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

absl::Status of_stack(const StackConfig& stack, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("stack ", stack.name, ": ", status.message()));
}

// The files may have been replaced between describing and loading them.
absl::Status check_as_described(const Stack& stack, const std::vector<std::string>& sha256s) {
  const std::vector<PluginReport> reports = stack.report();
  for (size_t i = 0; i < reports.size(); ++i) {
    if (i < sha256s.size() && reports[i].info.sha256 == sha256s[i]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(reports[i].info.path,
                     ": found another file than a moment before; expected it to stay: "
                     "reload again"));
  }
  return absl::OkStatus();
}

// Newest and first tokens, in whole blocks. 0: no limit.
uint64_t hot_limit(const std::vector<ChosenPlugin>& plugins) {
  uint64_t newest = 0, first = 0;
  for (const ChosenPlugin& plugin : plugins) {
    if (plugin.table != "kv_tier") continue;
    for (const auto& [key, setting] : plugin.values) {
      if (key == "hot_tokens") newest = static_cast<uint64_t>(std::get<int64_t>(setting.value));
      if (key == "sink_tokens") first = static_cast<uint64_t>(std::get<int64_t>(setting.value));
    }
  }
  return newest == 0 ? 0 : newest + first + 2 * kPrefixBlockTokens;
}

absl::StatusOr<StartedLane> start_lane(const ServeConfig& config, const StackConfig& stack,
                                       ThreadPool& threads, Turnstile& turnstile,
                                       const LogSink& log) {
  log(LogLevel::kInfo, "host", absl::StrCat("loading stack ", stack.name));
  absl::StatusOr<std::vector<ChosenPlugin>> plugins = chosen_plugins(stack.profile);
  if (!plugins.ok()) return plugins.status();
  const std::string digest = digest_of(stack.profile, *plugins);
  LaneOptions options = lane_options(stack, config.classes, digest);
  options.hot_limit_tokens = hot_limit(*plugins);
  std::vector<std::string> sha256s;
  for (const ChosenPlugin& plugin : *plugins) sha256s.push_back(plugin.library.info.sha256);
  absl::StatusOr<std::unique_ptr<Stack>> loaded =
      load_chosen_stack(*std::move(plugins), threads, log);
  if (!loaded.ok()) return loaded.status();
  if (const absl::Status status = check_as_described(**loaded, sha256s); !status.ok())
    return status;
  absl::StatusOr<std::unique_ptr<Lane>> lane =
      Lane::start(std::move(options), *std::move(loaded), &turnstile);
  if (!lane.ok()) return lane.status();
  return StartedLane{*std::move(lane), digest};
}

}  // namespace

absl::StatusOr<Lanes> start_lanes(const ServeConfig& config, ThreadPool& threads,
                                  Turnstile& turnstile, const LogSink& log) {
  const std::set<std::string> used = used_stacks(config);
  Lanes lanes;
  for (const StackConfig& stack : config.stacks) {
    if (used.count(stack.name) == 0) continue;
    absl::StatusOr<StartedLane> started = start_lane(config, stack, threads, turnstile, log);
    if (!started.ok()) return of_stack(stack, started.status());
    lanes.by_stack.emplace(stack.name, std::move(started->lane));
    lanes.digests.emplace(stack.name, std::move(started->digest));
  }
  return lanes;
}

StackLoader stack_loader(ThreadPool& threads, Turnstile& turnstile, LogSink log) {
  StackLoader loader;
  loader.digest = [](const StackConfig& stack) -> absl::StatusOr<std::string> {
    const absl::StatusOr<std::vector<ChosenPlugin>> plugins = chosen_plugins(stack.profile);
    if (!plugins.ok()) return plugins.status();
    return digest_of(stack.profile, *plugins);
  };
  loader.start = [&threads, &turnstile, log = std::move(log)](const ServeConfig& config,
                                                              const StackConfig& stack) {
    return start_lane(config, stack, threads, turnstile, log);
  };
  return loader;
}

}  // namespace varve::cli
