#include "core/route/ab_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/str_cat.h"

namespace varve {
namespace {

using statistics::Gate;
using testing::HasSubstr;

constexpr double kStart = 1e9;

ExperimentConfig experiment(const char* name, const char* mode) {
  ExperimentConfig config;
  config.name = name;
  config.class_name = "standard";
  config.mode = mode;
  config.arms = {{"exact", 50}, {std::string(mode) == "aa" ? "exact" : "lossy", 50}};
  if (config.mode == "switchback") {  // blocks do not follow weights
    config.arms[0].weight = 70;
    config.arms[1].weight = 30;
  }
  config.margin = 0.2;
  return config;
}

struct Story {
  uint64_t n_units = 6000;
  double slowdown = 1, treatment_share = 0.5, longer_prompts = 1, errors = 0, kld = 0.002;
  double busy = 1;  // how much slower both arms are
  uint64_t n_samples = 0;
  bool crosses = false;
  uint64_t block_units = 0;  // of a switchback
};

void play(const ExperimentConfig& config, const Story& story, AbLog& log, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  log.events.push_back(experiment_event(config, "started", "", kStart));
  bool block_is_treatment = false;
  for (uint64_t i = 0; i < story.n_units; ++i) {
    const uint64_t block = story.block_units == 0 ? 0 : i / story.block_units;
    if (story.block_units != 0 && i % story.block_units == 0)
      block_is_treatment = block % 2 == 0 ? uniform(random) < 0.5 : !block_is_treatment;
    const bool is_treatment =
        story.block_units == 0 ? uniform(random) < story.treatment_share : block_is_treatment;
    Exposure row;
    row.experiment = config.name;
    row.version = config.version;
    row.unit_hash = random();
    row.block = block;
    row.arm = arm_name(config, is_treatment ? 1 : 0);
    row.class_name = config.class_name;
    row.wall_s = kStart + 10 + static_cast<double>(i);
    const double slow = story.busy * (is_treatment ? story.slowdown : 1);
    row.prompt_tokens = static_cast<uint64_t>(1000 * std::exp(normal(random)) *
                                              (is_treatment ? story.longer_prompts : 1));
    row.output_tokens = 10;
    row.hot_bytes = 100 * (row.prompt_tokens + 10) / (is_treatment ? 4 : 1);
    row.finish = "stop";
    row.ttft_ms = 200 * std::exp(0.4 * normal(random)) * slow;
    row.gap_p50_ms = 30 * std::exp(0.2 * normal(random)) * slow;
    row.gap_p99_ms = 2 * row.gap_p50_ms;
    if (is_treatment && uniform(random) < story.errors) {
      row.finish = "error";
      row.error = "Internal";
      row.ttft_ms = row.gap_p50_ms = row.gap_p99_ms = std::nan("");
    }
    log.exposures.push_back(row);
    if (story.crosses && i % 100 == 0) {
      row.arm = arm_name(config, is_treatment ? 0 : 1);
      log.exposures.push_back(row);
    }
  }
  for (uint64_t i = 0; i < story.n_samples; ++i) {
    QualitySample sample{config.name, config.version, arm_name(config, 1), absl::StrCat(i), 0,
                         256,         6000 * (i % 4)};
    sample.mean_kld = story.kld * std::exp(0.5 * normal(random));
    sample.delta_nll = sample.mean_kld;
    sample.top1_agreement = 1 - story.kld / 4;
    sample.unit_hash = random();
    log.samples.push_back(sample);
  }
}

AbReport report_of(const Story& story, const char* mode = "unit") {
  AbLog log;
  play(experiment("memory", mode), story, log);
  const auto report = make_ab_report(log, "memory", {});
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? *report : AbReport{};
}

Gate::State state_of(const AbReport& report, const std::string& gate) {
  for (const Gate& one : report.gates) {
    if (one.name == gate) return one.state;
  }
  ADD_FAILURE() << "no gate " << gate;
  return Gate::State::kBroken;
}

TEST(AbReport, SaysGoodEnoughAndWhatMemoryItSaves) {
  Story story;
  story.slowdown = 0.8;
  story.n_samples = 6000;
  const AbReport report = report_of(story);
  ASSERT_TRUE(report.is_valid);
  ASSERT_EQ(report.treatments.size(), 1u);
  const TreatmentReport& lossy = report.treatments.front();
  EXPECT_TRUE(lossy.comparisons.front().is_primary);
  EXPECT_EQ(lossy.comparisons.front().metric, "ttft p95");
  EXPECT_EQ(lossy.comparisons.front().verdict, Verdict::kGoodEnough);
  EXPECT_LE(lossy.comparisons.front().control.lower, lossy.comparisons.front().control_value);
  EXPECT_GE(lossy.comparisons.front().control.upper, lossy.comparisons.front().control_value);
  EXPECT_NEAR(lossy.kv_saved, 0.75, 0.01);
  ASSERT_EQ(lossy.quality.size(), 4u);  // all, and three of the depths
  EXPECT_EQ(lossy.quality.front().verdict, Verdict::kGoodEnough);
  EXPECT_EQ(lossy.quality.front().units, 6000u);
  EXPECT_EQ(state_of(report, "A/A run"), Gate::State::kMissing);
  const std::string text = ab_report_text(report);
  EXPECT_THAT(text, HasSubstr("good enough: "));
  EXPECT_THAT(text, HasSubstr("KV memory saved: 75.0%"));
  EXPECT_THAT(text, HasSubstr("missing  A/A run"));
  const auto json = nlohmann::json::parse(ab_report_json(report));
  EXPECT_EQ(json["treatments"][0]["comparisons"][0]["verdict"], "good_enough");
  EXPECT_EQ(json["valid"], true);
}

TEST(AbReport, SaysWorse) {
  Story story;
  story.slowdown = 1.6;
  story.n_samples = 3000;
  story.kld = 0.05;
  const AbReport report = report_of(story);
  ASSERT_EQ(report.treatments.size(), 1u);
  EXPECT_EQ(report.treatments[0].comparisons.front().verdict, Verdict::kWorse);
  EXPECT_EQ(report.treatments[0].quality.front().verdict, Verdict::kWorse);
  EXPECT_THAT(ab_report_text(report), HasSubstr("worse: not at most 20% above the control's"));
}

TEST(AbReport, SaysHowMuchIsMissing) {
  Story story;
  story.n_units = 300;
  story.slowdown = 0.8;
  const AbReport report = report_of(story);
  const Comparison& primary = report.treatments.at(0).comparisons.front();
  EXPECT_EQ(primary.verdict, Verdict::kNotYet);
  ASSERT_TRUE(primary.more_units.has_value());
  EXPECT_GT(*primary.more_units, 100u);
  EXPECT_LT(*primary.more_units, 20000u);
  EXPECT_THAT(ab_report_text(report), HasSubstr("not enough data yet: about"));
}

TEST(AbReport, NothingAtAllIsNotAResult) {
  Story story;
  story.n_units = 0;
  const AbReport report = report_of(story);
  EXPECT_TRUE(report.is_valid);
  for (const Comparison& comparison : report.treatments.at(0).comparisons)
    EXPECT_EQ(comparison.verdict, Verdict::kNotYet);
  EXPECT_THAT(ab_report_text(report), HasSubstr("not enough data yet"));
  EXPECT_TRUE(nlohmann::json::accept(ab_report_json(report)));
}

TEST(AbReport, FailedRequestsAreNotFast) {
  Story story;
  story.errors = 0.2;
  story.slowdown = 0.5;
  const TreatmentReport lossy = report_of(story).treatments.at(0);
  EXPECT_EQ(lossy.comparisons.front().verdict, Verdict::kWorse);
  EXPECT_EQ(lossy.comparisons.back().metric, "errors");
  EXPECT_EQ(lossy.comparisons.back().verdict, Verdict::kWorse);
}

TEST(AbReport, WhatIsUnderWayCounts) {
  Story story;
  AbLog log;
  play(experiment("memory", "unit"), story, log);
  EXPECT_EQ(make_ab_report(log, "memory", {})->treatments[0].comparisons[0].verdict,
            Verdict::kGoodEnough);
  // A tenth of the treatment's requests hang. Open ones come last in a log.
  uint64_t n = 0;
  for (Exposure& row : log.exposures) {
    if (row.arm != "lossy" || n++ % 10 != 0) continue;
    row.ttft_ms = row.gap_p50_ms = row.gap_p99_ms = std::nan("");
    row.finish = kRunning;
    row.total_ms = 1e6;
  }
  std::stable_partition(log.exposures.begin(), log.exposures.end(),
                        [](const Exposure& row) { return !is_open(row); });
  auto report = make_ab_report(log, "memory", {});
  ASSERT_TRUE(report.ok() && report->is_valid);
  EXPECT_EQ(report->arms[1].open, (n + 9) / 10);
  EXPECT_EQ(report->arms[0].units + report->arms[1].units, 6000u);
  const TreatmentReport& lossy = report->treatments[0];
  EXPECT_EQ(lossy.comparisons[0].verdict, Verdict::kWorse);
  EXPECT_EQ(lossy.comparisons.back().metric, "errors");
  EXPECT_EQ(lossy.comparisons.back().verdict, Verdict::kNotYet);
  EXPECT_EQ(lossy.comparisons.back().treatment_value, 0);
  EXPECT_THAT(ab_report_text(*report), HasSubstr(absl::StrCat(report->arms[1].open, " under way")));
  // Who is still in the queue may never be exposed: its wait speaks for neither answer.
  for (Exposure& row : log.exposures) {
    if (is_open(row)) row.finish = kWaiting;
  }
  report = make_ab_report(log, "memory", {});
  ASSERT_TRUE(report.ok() && report->is_valid);
  EXPECT_EQ(report->treatments[0].comparisons[0].verdict, Verdict::kNotYet);
}

TEST(AbReport, ABrokenGateHidesTheResult) {
  Story lost, crossed, unlike;
  lost.treatment_share = 0.45;
  crossed.crosses = true;
  unlike.longer_prompts = 1.5;
  const std::pair<const char*, Story> cases[] = {
      {"sample ratio", lost}, {"crossover", crossed}, {"balance", unlike}};
  for (const auto& [gate, story] : cases) {
    const AbReport report = report_of(story);
    EXPECT_EQ(state_of(report, gate), Gate::State::kBroken) << gate;
    EXPECT_FALSE(report.is_valid);
    EXPECT_TRUE(report.treatments.empty());
    EXPECT_THAT(ab_report_text(report), HasSubstr("No result: a gate is broken"));
  }
}

// From 10 % to 50 %. Returns when that was.
double play_ramp(const Story& after_ramp, AbLog& log) {
  ExperimentConfig config = experiment("memory", "unit");
  config.arms[0].weight = 90;
  config.arms[1].weight = 10;
  Story story;
  story.treatment_share = 0.1;
  play(config, story, log);
  config.arms[0].weight = config.arms[1].weight = 50;
  const double later = log.exposures.back().wall_s + 5;
  AbLog after;
  play(config, after_ramp, after, 2);
  for (Exposure& row : after.exposures) row.wall_s += later - kStart;
  log.events.push_back(experiment_event(config, "weights changed", "", later));
  log.exposures.insert(log.exposures.end(), after.exposures.begin(), after.exposures.end());
  return later;
}

TEST(AbReport, ARampIsNoSampleRatioMismatchAndNoCrossover) {
  AbLog log;
  const double later = play_ramp({}, log);
  // The units of the added share move and are seen again in the other arm.
  Exposure moved = log.exposures.front();
  moved.arm = moved.arm == "exact" ? "lossy" : "exact";
  moved.wall_s = later + 50;
  log.exposures.push_back(moved);
  const auto report = make_ab_report(log, "memory", {});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->record.splits.size(), 2u);
  EXPECT_TRUE(report->is_valid) << ab_report_text(*report);
}

// Most of the treatment's units come when both arms are slower, and with longer prompts.
TEST(AbReport, ARampIntoBusyHoursIsNoSlowdown) {
  Story busy;
  busy.busy = 2;
  AbLog log;
  const double later = play_ramp(busy, log);
  for (Exposure& row : log.exposures) {
    if (row.wall_s > later) row.prompt_tokens *= 2;
  }
  auto report = make_ab_report(log, "memory", {});
  ASSERT_TRUE(report.ok());
  ASSERT_TRUE(report->is_valid) << ab_report_text(*report);
  EXPECT_EQ(report->arms[0].units + report->arms[1].units, 12000u);
  EXPECT_EQ(report->treatments.at(0).comparisons.front().verdict, Verdict::kGoodEnough);
  EXPECT_THAT(ab_report_text(*report), HasSubstr("since the last change of weights"));

  // An arm that was stopped is judged by what came before.
  ExperimentConfig stopped = report->record.config;
  stopped.arms[0].weight = 100;
  stopped.arms[1].weight = 0;
  log.events.push_back(
      experiment_event(stopped, "arm stopped", "", log.exposures.back().wall_s + 20));
  report = make_ab_report(log, "memory", {});
  ASSERT_TRUE(report.ok());
  ASSERT_TRUE(report->is_valid) << ab_report_text(*report);
  EXPECT_EQ(report->treatments.at(0).comparisons.front().verdict, Verdict::kGoodEnough);
}

TEST(AbReport, LimitsOfNothingAtAllAreNeverGoodEnough) {
  ExperimentConfig config = experiment("memory", "unit");
  config.kld_max = 0;
  config.top1_min = 1;
  const std::pair<double, Verdict> cases[] = {{0.002, Verdict::kNotYet}, {0.5, Verdict::kWorse}};
  for (const auto& [kld, verdict] : cases) {
    Story story;
    story.n_samples = 3000;
    story.kld = kld;
    AbLog log;
    play(config, story, log);
    const auto report = make_ab_report(log, "memory", {});
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->treatments.at(0).quality.front().verdict, verdict) << kld;
  }
}

TEST(AbReport, UsesTheAaRunOfTheSameLog) {
  for (const double slowdown : {1.0, 1.6}) {
    AbLog log;
    Story story, aa;
    aa.slowdown = slowdown;  // of what should be the same
    play(experiment("memory", "unit"), story, log);
    play(experiment("check", "aa"), aa, log, 3);
    EXPECT_EQ(log.exposures.back().arm.substr(0, 5), "exact");
    const auto report = make_ab_report(log, "memory", {});
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(state_of(*report, "A/A run"),
              slowdown == 1 ? Gate::State::kPassed : Gate::State::kBroken);
  }
}

TEST(AbReport, ComparesTimeBlocksOfASwitchback) {
  Story story;
  story.block_units = 20;
  story.slowdown = 1.6;
  const AbReport worse = report_of(story, "switchback");
  ASSERT_TRUE(worse.is_valid) << ab_report_text(worse);
  EXPECT_EQ(worse.treatments[0].comparisons.front().metric, "ttft of blocks");
  EXPECT_EQ(worse.treatments[0].comparisons.front().verdict, Verdict::kWorse);
  EXPECT_NEAR(worse.treatments[0].comparisons.front().treatment_value, 1.6, 0.1);
  story.slowdown = 1;
  EXPECT_EQ(report_of(story, "switchback").treatments[0].comparisons.front().verdict,
            Verdict::kGoodEnough);
}

TEST(AbReport, NamesAnExperimentThatNobodyDescribed) {
  AbLog log;
  play(experiment("memory", "unit"), {}, log);
  log.events.clear();
  EXPECT_THAT(make_ab_report(log, "memory", {}).status().message(), HasSubstr("--profile"));
  EXPECT_TRUE(make_ab_report(log, "memory", {experiment("memory", "unit")}).ok());
  log.events.push_back({"memory", "started", R"({"arms":[{"stack":3}]})", 0});
  EXPECT_EQ(make_ab_report(log, "memory", {}).status().code(), absl::StatusCode::kDataLoss);
  log.events.back().detail = std::string(10000, '[');
  EXPECT_EQ(make_ab_report(log, "memory", {}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace varve
