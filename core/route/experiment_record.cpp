#include "core/route/experiment_record.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace varve {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
void read(const Json& json, const char* key, T& value) {
  const auto found = json.find(key);
  if (found != json.end()) value = found->get<T>();
}

// Throws Json::exception for another form.
ExperimentConfig config_from(const Json& json) {
  ExperimentConfig config;
  read(json, "version", config.version);
  read(json, "class", config.class_name);
  read(json, "mode", config.mode);
  for (const Json& arm : json.at("arms"))
    config.arms.push_back({arm.at("stack").get<std::string>(), arm.at("weight").get<double>()});
  read(json, "margin", config.margin);
  read(json, "alpha", config.alpha);
  read(json, "error_rate_max", config.error_rate_max);
  read(json, "kld_max", config.kld_max);
  read(json, "top1_min", config.top1_min);
  read(json, "min_units", config.min_units);
  return config;
}

WeightsSegment split_of(const ExperimentConfig& config, double from_s) {
  WeightsSegment split{from_s, {}};
  for (const ExperimentArm& arm : config.arms) split.weights.push_back(arm.weight);
  return split;
}

}  // namespace

std::string arm_name(const ExperimentConfig& experiment, size_t arm) {
  const std::string& stack = experiment.arms[arm].stack;
  size_t same = 1;
  for (size_t i = 0; i < arm; ++i) same += experiment.arms[i].stack == stack ? 1 : 0;
  return same == 1 ? stack : absl::StrCat(stack, "-", same);
}

std::vector<std::string> arm_names(const ExperimentConfig& experiment) {
  std::vector<std::string> names;
  for (size_t i = 0; i < experiment.arms.size(); ++i) names.push_back(arm_name(experiment, i));
  return names;
}

ExperimentEvent experiment_event(const ExperimentConfig& experiment, std::string what,
                                 std::string why, double wall_s) {
  Json detail = {{"version", experiment.version},
                 {"class", experiment.class_name},
                 {"mode", experiment.mode},
                 {"arms", Json::array()},
                 {"margin", experiment.margin},
                 {"alpha", experiment.alpha},
                 {"error_rate_max", experiment.error_rate_max},
                 {"kld_max", experiment.kld_max},
                 {"top1_min", experiment.top1_min},
                 {"min_units", experiment.min_units}};
  for (const ExperimentArm& arm : experiment.arms)
    detail["arms"].push_back({{"stack", arm.stack}, {"weight", arm.weight}});
  if (!why.empty()) detail["why"] = std::move(why);
  return {experiment.name, std::move(what),
          detail.dump(-1, ' ', false, Json::error_handler_t::replace), wall_s};
}

absl::StatusOr<ExperimentRecord> read_record(const std::string& experiment,
                                             std::span<const ExperimentEvent> events) {
  ExperimentRecord record;
  bool found = false;
  for (const ExperimentEvent& event : events) {
    if (event.experiment != experiment) continue;
    const Json json = Json::parse(event.detail, nullptr, false);
    if (!json.is_object() || !json.contains("arms")) continue;
    ExperimentConfig config;
    try {
      config = config_from(json);
    } catch (const Json::exception& error) {
      return absl::DataLossError(absl::StrCat("experiment ", experiment, ": its event '",
                                              event.what, "' in the log: ", error.what()));
    }
    if (config.arms.size() < 2) continue;
    // Another version, or another set of arms, is another experiment.
    if (!found || config.version != record.config.version ||
        config.arms.size() != record.config.arms.size())
      record.splits.clear();
    found = true;
    WeightsSegment split = split_of(config, event.wall_s);
    if (record.splits.empty() || record.splits.back().weights != split.weights)
      record.splits.push_back(std::move(split));
    record.config = std::move(config);
  }
  if (!found) {
    return absl::NotFoundError(
        absl::StrCat("experiment ", experiment,
                     ": the log has no event that describes it; expected one of 'started': name "
                     "the profile that it ran with (--profile)"));
  }
  record.config.name = experiment;
  record.arms = arm_names(record.config);
  return record;
}

ExperimentRecord record_of(const ExperimentConfig& experiment) {
  ExperimentRecord record;
  record.config = experiment;
  record.splits.push_back(split_of(experiment, 0));
  record.arms = arm_names(experiment);
  return record;
}

}  // namespace varve
