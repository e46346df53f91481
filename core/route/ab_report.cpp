#include "core/route/ab_report.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/route/statistics/units.h"

namespace varve {
namespace {

using statistics::ArmData;
using statistics::ascending;
using statistics::Gate;
using statistics::Interval;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// Fewer than this prove nothing about the pipeline.
constexpr uint64_t kAaUnitsMin = 100;
// Block differences beyond a factor of four count as that.
const double kBlockClip = std::log(4.0);
// A unit counts with at most this many times the limit, so that one text cannot decide.
constexpr double kQualityClip = 20;
constexpr double kDeltaNllClip = 1;

struct Question {
  const char* name;
  statistics::Metric metric;
  double p;
};
// The first is the primary one.
constexpr Question kQuestions[] = {
    {"ttft p95", statistics::kTtft, 0.95}, {"ttft p50", statistics::kTtft, 0.5},
    {"ttft p99", statistics::kTtft, 0.99}, {"later ttft p95", statistics::kLaterTtft, 0.95},
    {"gap p50", statistics::kGap, 0.5},    {"gap p95", statistics::kGap, 0.95},
    {"gap p99", statistics::kGap, 0.99},   {"stall p95", statistics::kStall, 0.95},
};
// The others, the error rate, KLD and top-1.
constexpr double kGuardrails = std::size(kQuestions) - 1 + 3;

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? kNan : sum / static_cast<double>(values.size());
}

// How many times the data so far, at the rate at which evidence has come, until `evidence(times)`
// reaches `enough`; nothing when a thousand times would not do.
template <class Evidence>
std::optional<double> times_needed(double enough, Evidence evidence) {
  for (double times = 1.25; times < 1000; times *= 1.25) {
    if (evidence(times) >= enough) return times;
  }
  return std::nullopt;
}

std::optional<uint64_t> more_than(double units, std::optional<double> times) {
  if (!times.has_value() || units <= 0) return std::nullopt;
  return static_cast<uint64_t>(std::ceil(units * (*times - 1)));
}

Comparison compare_quantiles(const Question& question, const ArmData& control_data,
                             const ArmData& treatment_data, const ExperimentConfig& config,
                             double control_part) {
  Comparison result;
  result.metric = question.name;
  result.unit = "ms";
  result.is_primary = &question == kQuestions;
  result.alpha = result.is_primary ? config.alpha : config.alpha / kGuardrails;
  result.limit = absl::StrFormat("at most %g%% above the control's", 100 * config.margin);
  const statistics::Values control = ascending(control_data.metric[question.metric]);
  const statistics::Values treatment = ascending(treatment_data.metric[question.metric]);
  result.control_value = statistics::sample_quantile(control.lower, question.p);
  result.treatment_value = statistics::sample_quantile(treatment.lower, question.p);
  result.control = statistics::quantile_interval(control, question.p, result.alpha);
  result.treatment = statistics::quantile_interval(treatment, question.p, result.alpha);
  const double enough = std::log(1 / result.alpha), factor = 1 + config.margin;
  const auto good = [&](double times) {
    return statistics::log_evidence_of_no_more(control, treatment, question.p, factor, control_part,
                                               times);
  };
  const auto worse = [&](double times) {
    return statistics::log_evidence_of_more(control, treatment, question.p, factor, control_part,
                                            times);
  };
  if (worse(1) >= enough) {
    result.verdict = Verdict::kWorse;
  } else if (good(1) >= enough) {
    result.verdict = Verdict::kGoodEnough;
    result.is_better = statistics::log_evidence_of_more(treatment, control, question.p, 1,
                                                        1 - control_part) >= enough;
  } else if (!control.lower.empty() && !treatment.lower.empty()) {
    const auto either = [&](double times) { return std::max(good(times), worse(times)); };
    result.more_units =
        more_than(static_cast<double>(control.lower.size() + treatment.lower.size()),
                  times_needed(enough, either));
  }
  return result;
}

double failed_share(const ArmData& arm) {
  const uint64_t decided = arm.units - arm.undecided;
  return decided == 0 ? kNan : static_cast<double>(arm.failed) / static_cast<double>(decided);
}

Interval failed_interval(const ArmData& arm, double alpha) {
  const auto failed = static_cast<double>(arm.failed);
  return statistics::share_interval(static_cast<double>(arm.units), failed,
                                    failed + static_cast<double>(arm.undecided), alpha);
}

// The error rate over the control's.
Comparison compare_errors(const ArmData& control, const ArmData& treatment,
                          const ExperimentConfig& config) {
  Comparison result;
  result.metric = "errors";
  result.alpha = config.alpha / kGuardrails;
  result.limit =
      absl::StrFormat("at most %g points above the control's", 100 * config.error_rate_max);
  result.control_value = failed_share(control);
  result.treatment_value = failed_share(treatment);
  result.control = failed_interval(control, result.alpha);
  result.treatment = failed_interval(treatment, result.alpha);
  // An answer takes one end of each interval, and each end is wrong with alpha / 2.
  if (result.treatment.lower - result.control.upper > config.error_rate_max) {
    result.verdict = Verdict::kWorse;
  } else if (result.treatment.upper - result.control.lower <= config.error_rate_max) {
    result.verdict = Verdict::kGoodEnough;
  }
  return result;
}

// Of a mean with a limit from above.
Verdict verdict_below(const Interval& mean, double limit) {
  if (mean.lower > limit) return Verdict::kWorse;
  return mean.upper <= limit ? Verdict::kGoodEnough : Verdict::kNotYet;
}

Comparison compare_blocks(const char* name, double Exposure::*latency_ms, bool is_primary,
                          const std::vector<Exposure>& rows, const ExperimentRecord& record,
                          const std::string& arm) {
  const ExperimentConfig& config = record.config;
  Comparison result;
  result.metric = name;
  result.is_primary = is_primary;
  result.alpha = is_primary ? config.alpha : config.alpha / kGuardrails;
  result.limit = absl::StrFormat("at most %g%% above the control's", 100 * config.margin);
  const std::vector<double> differences =
      statistics::block_differences(rows, record.arms[0], arm, latency_ms);
  const Interval logs =
      statistics::mean_interval(differences, -kBlockClip, kBlockClip, result.alpha);
  result.control_value = 1;
  result.control = {1, 1};
  result.treatment_value = std::exp(mean_of(differences));
  result.treatment = {std::exp(logs.lower), std::exp(logs.upper)};
  result.verdict = verdict_below(logs, std::log1p(config.margin));
  result.is_better = result.verdict == Verdict::kGoodEnough && logs.upper < 0;
  return result;
}

struct Depth {
  const char* name;
  uint64_t from, to;
};
constexpr Depth kDepths[] = {{"all", 0, UINT64_MAX},
                             {"0-4K", 0, 4096},
                             {"4-16K", 4096, 16384},
                             {"16-64K", 16384, 65536},
                             {"64K+", 65536, UINT64_MAX}};

// Where nothing at all is allowed, the whole range counts.
double clip_for(double limit, double largest) {
  return limit > 0 ? std::min(kQualityClip * limit, largest) : largest;
}

QualityBand compare_quality(const Depth& depth, const std::vector<QualitySample>& samples,
                            const std::string& arm, const ExperimentConfig& config) {
  std::set<uint64_t> seen;
  std::vector<double> delta_nll, kld, differs;
  for (const QualitySample& sample : samples) {
    if (sample.arm != arm || sample.depth_tokens < depth.from || sample.depth_tokens >= depth.to)
      continue;
    if (!seen.insert(sample.unit_hash).second) continue;
    // What is no number is as far off as can be.
    delta_nll.push_back(std::isnan(sample.delta_nll) ? kDeltaNllClip : sample.delta_nll);
    kld.push_back(std::isnan(sample.mean_kld) ? kQualityClip : sample.mean_kld);
    differs.push_back(std::isnan(sample.top1_agreement) ? 1 : 1 - sample.top1_agreement);
  }
  QualityBand band;
  band.depth = depth.name;
  band.units = kld.size();
  const double alpha = config.alpha / kGuardrails;
  const double differs_max = 1 - config.top1_min;
  const double kld_clip = clip_for(config.kld_max, 10), differs_clip = clip_for(differs_max, 1);
  for (size_t i = 0; i < kld.size(); ++i)
    band.clipped += kld[i] > kld_clip || differs[i] > differs_clip ? 1 : 0;
  band.delta_nll = statistics::mean_interval(delta_nll, -kDeltaNllClip, kDeltaNllClip, alpha);
  band.kld = statistics::mean_interval(kld, 0, kld_clip, alpha);
  const Interval differ = statistics::mean_interval(differs, 0, differs_clip, alpha);
  band.top1 = {1 - differ.upper, 1 - differ.lower};
  band.mean_delta_nll = mean_of(delta_nll);
  band.mean_kld = mean_of(kld);
  band.mean_top1 = 1 - mean_of(differs);
  const Verdict by_kld = verdict_below(band.kld, config.kld_max);
  const Verdict by_top1 = verdict_below(differ, differs_max);
  if (by_kld == Verdict::kWorse || by_top1 == Verdict::kWorse) {
    band.verdict = Verdict::kWorse;
  } else if (by_kld == Verdict::kGoodEnough && by_top1 == Verdict::kGoodEnough) {
    band.verdict = Verdict::kGoodEnough;
  }
  return band;
}

// In the order of arrival.
std::vector<Exposure> rows_of(const AbLog& log, const ExperimentRecord& record) {
  std::vector<Exposure> rows;
  for (const Exposure& row : log.exposures) {
    if (row.experiment == record.config.name && row.version == record.config.version)
      rows.push_back(row);
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Exposure& a, const Exposure& b) { return a.wall_s < b.wall_s; });
  return rows;
}

std::vector<ArmData> data_of(const std::vector<Exposure>& rows, const ExperimentRecord& record,
                             statistics::TimeSpan when) {
  statistics::Units units(record.arms, when);
  for (const Exposure& row : rows) units.add(row);
  return units.arms();
}

// The last split that gave traffic to both. Only its units are compared: after a ramp most of the
// treatment's came later than most of the control's, perhaps at another time of day.
size_t deciding_split(const ExperimentRecord& record, size_t arm) {
  for (size_t i = record.splits.size(); i-- > 0;) {
    const std::vector<double>& weights = record.splits[i].weights;
    if (weights[0] > 0 && weights[arm] > 0) return i;
  }
  return record.splits.size() - 1;
}

statistics::TimeSpan span_of(const ExperimentRecord& record, size_t split) {
  statistics::TimeSpan span;
  if (split > 0) span.from_s = record.splits[split].from_s;
  if (split + 1 < record.splits.size()) span.to_s = record.splits[split + 1].from_s;
  return span;
}

std::vector<ArmData> deciding_data(const std::vector<Exposure>& rows,
                                   const ExperimentRecord& record, size_t arm) {
  return data_of(rows, record, span_of(record, deciding_split(record, arm)));
}

// Of the units of the first and the given arm, by design.
double control_part(const ExperimentRecord& record, size_t arm) {
  const std::vector<double>& weights = record.splits[deciding_split(record, arm)].weights;
  const double sum = weights[0] + weights[arm];
  return sum > 0 ? std::clamp(weights[0] / sum, 0.01, 0.99) : 0.5;
}

// Does the same stack look like itself?
Gate aa_gate(const AbLog& log, const ExperimentRecord& record) {
  Gate gate{"A/A run", Gate::State::kMissing,
            "no experiment of mode aa in this log: nothing shows that two arms of one stack look "
            "alike; run one for a day"};
  std::set<std::string> names;
  for (const ExperimentEvent& event : log.events) names.insert(event.experiment);
  for (const std::string& name : names) {
    const absl::StatusOr<ExperimentRecord> aa = read_record(name, log.events);
    if (!aa.ok() || aa->config.mode != "aa" || aa->config.name == record.config.name) continue;
    const std::vector<Exposure> rows = rows_of(log, *aa);
    const std::vector<ArmData> arms = deciding_data(rows, *aa, 1);
    if (arms[0].units < kAaUnitsMin || arms[1].units < kAaUnitsMin) {
      gate.text = absl::StrCat("A/A run ", name, " has ", arms[0].units, " and ", arms[1].units,
                               " units; expected at least ", kAaUnitsMin, " in each arm");
      continue;
    }
    ExperimentConfig same = aa->config;
    same.margin = 0;
    same.alpha /= 2;  // two questions
    const double part = control_part(*aa, 1);
    const bool alarm =
        compare_quantiles(kQuestions[0], arms[0], arms[1], same, part).verdict == Verdict::kWorse ||
        compare_quantiles(kQuestions[0], arms[1], arms[0], same, 1 - part).verdict ==
            Verdict::kWorse ||
        statistics::sample_ratio_gate(*aa, rows).state == Gate::State::kBroken;
    if (alarm) {
      return {gate.name, Gate::State::kBroken,
              absl::StrCat("A/A run ", name,
                           ": two arms of one stack differ; expected none to: "
                           "look for what tells the arms apart (order, machine, cache)")};
    }
    gate.state = Gate::State::kPassed;
    gate.text = absl::StrCat("A/A run ", name, ": ", arms[0].units + arms[1].units,
                             " units, no difference");
  }
  return gate;
}

TreatmentReport report_treatment(const AbLog& log, const std::vector<Exposure>& rows,
                                 const ExperimentRecord& record, size_t arm,
                                 const std::vector<ArmSummary>& arms) {
  TreatmentReport treatment;
  const std::vector<ArmData> data = deciding_data(rows, record, arm);
  treatment.arm = record.arms[arm];
  if (record.config.mode == "switchback") {
    treatment.comparisons = {
        compare_blocks("ttft of blocks", &Exposure::ttft_ms, true, rows, record, treatment.arm),
        compare_blocks("gap of blocks", &Exposure::gap_p50_ms, false, rows, record, treatment.arm),
        compare_blocks("stall of blocks", &Exposure::gap_p99_ms, false, rows, record,
                       treatment.arm)};
  } else {
    for (const Question& question : kQuestions) {
      treatment.comparisons.push_back(compare_quantiles(question, data[0], data[arm], record.config,
                                                        control_part(record, arm)));
    }
  }
  treatment.comparisons.push_back(compare_errors(data[0], data[arm], record.config));
  std::vector<QualitySample> samples;
  for (const QualitySample& sample : log.samples) {
    if (sample.experiment == record.config.name && sample.version == record.config.version &&
        sample.arm == treatment.arm)
      samples.push_back(sample);
  }
  for (const Depth& depth : kDepths) {
    QualityBand band = compare_quality(depth, samples, treatment.arm, record.config);
    if (band.units > 0) treatment.quality.push_back(std::move(band));
  }
  treatment.kv_saved = 1 - arms[arm].kv_bytes_per_token / arms[0].kv_bytes_per_token;
  return treatment;
}

}  // namespace

absl::StatusOr<AbLog> read_ab_log(const std::string& path) {
  AbLog log;
  absl::StatusOr<std::vector<Exposure>> exposures = read_exposures(path, "", 0);
  if (!exposures.ok()) return exposures.status();
  absl::StatusOr<std::vector<QualitySample>> samples = read_quality(path, "", 0);
  if (!samples.ok()) return samples.status();
  absl::StatusOr<std::vector<ExperimentEvent>> events = read_events(path, "");
  if (!events.ok()) return events.status();
  return AbLog{*std::move(exposures), *std::move(samples), *std::move(events)};
}

absl::StatusOr<AbReport> make_ab_report(const AbLog& log, const std::string& experiment,
                                        const std::vector<ExperimentConfig>& configured) {
  absl::StatusOr<ExperimentRecord> record = read_record(experiment, log.events);
  for (const ExperimentConfig& config : configured) {
    if (!record.ok() && config.name == experiment) record = record_of(config);
  }
  if (!record.ok()) return record.status();
  AbReport report;
  report.record = *record;
  const std::vector<Exposure> rows = rows_of(log, *record);
  const std::vector<ArmData> data = data_of(rows, *record, {});
  size_t latest = 0;  // deciding split of the treatments
  for (size_t arm = 1; arm < data.size(); ++arm)
    latest = std::max(latest, deciding_split(*record, arm));
  for (size_t arm = 0; arm < data.size(); ++arm) {
    report.arms.push_back({record->arms[arm], data[arm].units, data[arm].requests, data[arm].errors,
                           data[arm].open, data[arm].kv_bytes / data[arm].kv_tokens});
  }
  for (const ExperimentEvent& event : log.events) {
    if (event.experiment == experiment) report.events.push_back(event);
  }
  report.gates = {
      statistics::sample_ratio_gate(*record, rows), statistics::crossover_gate(*record, rows),
      statistics::balance_gate(*record, data_of(rows, *record, span_of(*record, latest)))};
  if (record->config.mode != "aa") report.gates.push_back(aa_gate(log, *record));
  report.is_valid = std::none_of(report.gates.begin(), report.gates.end(), [](const Gate& gate) {
    return gate.state == Gate::State::kBroken;
  });
  if (!report.is_valid) return report;
  for (size_t arm = 1; arm < data.size(); ++arm)
    report.treatments.push_back(report_treatment(log, rows, *record, arm, report.arms));
  return report;
}

}  // namespace varve
