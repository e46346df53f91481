// Stopped arms in the log of exposures.
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/route/dispatcher_snapshot.h"
#include "core/route/experiment_record.h"

namespace varve {
namespace {

constexpr char kArmStopped[] = "arm stopped";

// Arm and reason; empty when the detail is of another version or form.
std::pair<std::string, std::string> stopped_arm(const std::string& detail, uint32_t version) {
  const auto json = nlohmann::json::parse(detail, nullptr, false);
  if (!json.is_object() || !json.contains("version") || json["version"] != version ||
      !json.contains("why") || !json["why"].is_string())
    return {};
  return absl::StrSplit(json["why"].get<std::string>(), absl::MaxSplits(": ", 1));
}

}  // namespace

ExperimentEvent stop_event(const ExperimentConfig& experiment, const std::string& arm,
                           const std::string& why, double wall_s) {
  return experiment_event(experiment, kArmStopped, absl::StrCat(arm, ": ", why), wall_s);
}

absl::StatusOr<Stops> logged_stops(const std::string& path,
                                   const std::vector<ExperimentConfig>& experiments) {
  Stops stops;
  for (const ExperimentConfig& experiment : experiments) {
    const absl::StatusOr<std::vector<ExperimentEvent>> events = read_events(path, experiment.name);
    if (!events.ok()) return events.status();
    for (const ExperimentEvent& event : *events) {
      if (event.what != kArmStopped) continue;
      const auto [arm, why] = stopped_arm(event.detail, experiment.version);
      if (!arm.empty()) stops[experiment.name].emplace(arm, why);
    }
  }
  return stops;
}

}  // namespace varve
