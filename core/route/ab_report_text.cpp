#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/route/ab_report.h"

namespace varve {
namespace {

using Json = nlohmann::ordered_json;
using statistics::Gate;
using statistics::Interval;

const char* state_name(Gate::State state) {
  switch (state) {
    case Gate::State::kPassed:
      return "passed";
    case Gate::State::kMissing:
      return "missing";
    default:
      return "broken";
  }
}

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kGoodEnough:
      return "good_enough";
    case Verdict::kWorse:
      return "worse";
    default:
      return "not_yet";
  }
}

std::string more_text(const std::optional<uint64_t>& more_units) {
  return more_units.has_value() ? absl::StrCat("about ", *more_units, " more units")
                                : std::string("how many more units, cannot be told yet");
}

std::string verdict_text(const Comparison& comparison) {
  switch (comparison.verdict) {
    case Verdict::kGoodEnough:
      return comparison.is_better ? "good enough: better than the control"
                                  : absl::StrCat("good enough: ", comparison.limit);
    case Verdict::kWorse:
      return absl::StrCat("worse: not ", comparison.limit);
    default:
      return absl::StrCat("not enough data yet: ", more_text(comparison.more_units));
  }
}

std::string verdict_text(const QualityBand& band, const ExperimentConfig& config) {
  switch (band.verdict) {
    case Verdict::kGoodEnough:
      return absl::StrFormat("good enough: mean KLD at most %g, top-1 at least %g%%",
                             config.kld_max, 100 * config.top1_min);
    case Verdict::kWorse:
      return absl::StrFormat("worse: not mean KLD at most %g and top-1 at least %g%%",
                             config.kld_max, 100 * config.top1_min);
    default:
      return "not enough data yet";
  }
}

std::string interval_text(const Interval& interval, int digits) {
  const auto end = [&](double value) {
    return std::isinf(value) ? std::string(value < 0 ? "-" : "?")
                             : absl::StrFormat("%.*f", digits, value);
  };
  return absl::StrCat("[", end(interval.lower), ", ", end(interval.upper), "]");
}

std::string side_text(const Comparison& comparison, bool is_control) {
  const double value = is_control ? comparison.control_value : comparison.treatment_value;
  const Interval& interval = is_control ? comparison.control : comparison.treatment;
  const int digits = comparison.unit == "ms" ? 1 : 3;
  if (std::isnan(value)) return "-";
  return absl::StrCat(std::isinf(value) ? "never" : absl::StrFormat("%.*f", digits, value), " ",
                      interval_text(interval, digits));
}

void append_treatment(std::string& text, const AbReport& report, const TreatmentReport& treatment) {
  absl::StrAppendFormat(&text, "\n%s against %s (class %s)\n", treatment.arm, report.record.arms[0],
                        report.record.config.class_name);
  absl::StrAppendFormat(&text, "  %-18s %-28s %-28s %s\n", "", "control", "treatment", "verdict");
  for (const Comparison& comparison : treatment.comparisons) {
    absl::StrAppendFormat(
        &text, "%s %-18s %-28s %-28s %s\n", comparison.is_primary ? "*" : " ",
        comparison.unit.empty() ? comparison.metric
                                : absl::StrCat(comparison.metric, ", ", comparison.unit),
        side_text(comparison, true), side_text(comparison, false), verdict_text(comparison));
  }
  absl::StrAppendFormat(&text,
                        "  * decides, wrong at most %g%% of the time however often it is looked "
                        "at; the rest are guardrails\n",
                        100 * report.record.config.alpha);
  if (report.record.splits.size() > 1)
    text +=
        "  of the units that came since the last change of weights that left both arms traffic\n";
  if (treatment.quality.empty()) {
    text += "  quality: no request was replayed (shadow_percent)\n";
  } else {
    absl::StrAppendFormat(&text, "  %-8s %6s  %-26s %-26s %-26s %s\n", "depth", "units",
                          "delta NLL, nat", "KLD, nat", "top-1", "verdict");
  }
  for (const QualityBand& band : treatment.quality) {
    const auto cell = [](double mean, const Interval& interval) {
      return absl::StrFormat("%.4f %s", mean, interval_text(interval, 4));
    };
    absl::StrAppendFormat(&text, "  %-8s %6d  %-26s %-26s %-26s %s%s\n", band.depth, band.units,
                          cell(band.mean_delta_nll, band.delta_nll), cell(band.mean_kld, band.kld),
                          cell(band.mean_top1, band.top1), verdict_text(band, report.record.config),
                          band.clipped == 0 ? "" : absl::StrCat("; ", band.clipped, " far off"));
  }
  if (!std::isnan(treatment.kv_saved))
    absl::StrAppendFormat(&text, "  KV memory saved: %.1f%%\n", 100 * treatment.kv_saved);
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
Json interval_json(const Interval& interval) {
  return Json::array({number(interval.lower), number(interval.upper)});
}
Json units_json(const std::optional<uint64_t>& units) {
  return units.has_value() ? Json(*units) : Json(nullptr);
}

Json treatment_json(const TreatmentReport& treatment, const ExperimentConfig& config) {
  Json json = {{"arm", treatment.arm}, {"comparisons", Json::array()}, {"quality", Json::array()}};
  for (const Comparison& one : treatment.comparisons) {
    json["comparisons"].push_back({{"metric", one.metric},
                                   {"unit", one.unit},
                                   {"primary", one.is_primary},
                                   {"alpha", one.alpha},
                                   {"control", number(one.control_value)},
                                   {"control_interval", interval_json(one.control)},
                                   {"treatment", number(one.treatment_value)},
                                   {"treatment_interval", interval_json(one.treatment)},
                                   {"verdict", verdict_name(one.verdict)},
                                   {"better", one.is_better},
                                   {"more_units", units_json(one.more_units)},
                                   {"text", verdict_text(one)}});
  }
  for (const QualityBand& band : treatment.quality) {
    json["quality"].push_back({{"depth", band.depth},
                               {"units", band.units},
                               {"delta_nll", number(band.mean_delta_nll)},
                               {"delta_nll_interval", interval_json(band.delta_nll)},
                               {"kld", number(band.mean_kld)},
                               {"kld_interval", interval_json(band.kld)},
                               {"top1", number(band.mean_top1)},
                               {"top1_interval", interval_json(band.top1)},
                               {"far_off", band.clipped},
                               {"verdict", verdict_name(band.verdict)},
                               {"text", verdict_text(band, config)}});
  }
  json["kv_saved"] = number(treatment.kv_saved);
  return json;
}

}  // namespace

std::string ab_report_text(const AbReport& report) {
  const ExperimentConfig& config = report.record.config;
  std::string text = absl::StrFormat("experiment %s, version %d, mode %s, class %s\n\n",
                                     config.name, config.version, config.mode, config.class_name);
  for (const Gate& gate : report.gates)
    absl::StrAppendFormat(&text, "%-8s %-13s %s\n", state_name(gate.state), gate.name, gate.text);
  text += "\n";
  for (size_t i = 0; i < report.arms.size(); ++i) {
    const ArmSummary& arm = report.arms[i];
    absl::StrAppendFormat(&text, "%-20s weight %g%%, %d units, %d requests, %d errors", arm.name,
                          config.arms[i].weight, arm.units, arm.requests, arm.errors);
    if (arm.open > 0) absl::StrAppendFormat(&text, ", %d under way", arm.open);
    if (!std::isnan(arm.kv_bytes_per_token))
      absl::StrAppendFormat(&text, ", KV %.0f bytes per token", arm.kv_bytes_per_token);
    text += "\n";
  }
  if (!report.is_valid)
    return text + "\nNo result: a gate is broken, so the numbers would not mean what they say.\n";
  for (const TreatmentReport& treatment : report.treatments)
    append_treatment(text, report, treatment);
  return text;
}

std::string ab_report_json(const AbReport& report) {
  const ExperimentConfig& config = report.record.config;
  Json json = {{"experiment", config.name},   {"version", config.version}, {"mode", config.mode},
               {"class", config.class_name},  {"margin", config.margin},   {"alpha", config.alpha},
               {"valid", report.is_valid},    {"gates", Json::array()},    {"arms", Json::array()},
               {"treatments", Json::array()}, {"events", Json::array()}};
  for (const Gate& gate : report.gates) {
    json["gates"].push_back(
        {{"name", gate.name}, {"state", state_name(gate.state)}, {"text", gate.text}});
  }
  for (size_t i = 0; i < report.arms.size(); ++i) {
    const ArmSummary& arm = report.arms[i];
    json["arms"].push_back({{"name", arm.name},
                            {"weight", config.arms[i].weight},
                            {"units", arm.units},
                            {"requests", arm.requests},
                            {"errors", arm.errors},
                            {"open", arm.open},
                            {"kv_bytes_per_token", number(arm.kv_bytes_per_token)}});
  }
  for (const TreatmentReport& treatment : report.treatments)
    json["treatments"].push_back(treatment_json(treatment, config));
  for (const ExperimentEvent& event : report.events) {
    json["events"].push_back(
        {{"what", event.what}, {"detail", event.detail}, {"wall_s", event.wall_s}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace varve
