#include "core/metrics/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <regex>
#include <sstream>
#include <thread>

namespace varve {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Metrics::Names names() {
  return {{"vip", "standard"}, {"main", "light"}, {"control", "canary"}, "tiny", "1.2.3"};
}

RequestMetrics request(const std::string& class_name = "vip") {
  RequestMetrics r;
  r.class_name = class_name;
  r.arm = "control";
  r.stack = "main";
  r.outcome = "stop";
  r.queue_s = 0.004;
  r.prefill_s = 0.2;
  r.ttft_s = 0.3;
  r.total_s = 2;
  r.token_gaps_ms = {20, 30, 700};
  r.prompt_tokens = 100;
  r.cached_tokens = 64;
  r.output_tokens = 4;
  return r;
}

LaneMetrics lane() {
  LaneMetrics l;
  l.stack = "main";
  l.running = 3;
  l.waiting = 2;
  l.concurrency = 16;
  l.queue_max = 48;
  l.peak = true;
  l.last_progress_age_s = 0.25;
  l.usage.hot_bytes = 1000;
  l.usage.warm_bytes = 1200;
  l.usage.cold_bytes = 10;
  l.usage.hot_tokens = 10;
  l.usage.warm_tokens = 40;
  l.usage.bf16_bytes = 2500;  // 50 a token, 100 in f32
  l.budget_bytes = 1 << 20;
  l.hot_limit_tokens = 96;
  l.plugins.resize(2);
  l.plugins[0].name = "attention/hybrid";
  l.plugins[0].errors = 2;
  l.plugins[1].name = "kv_tier/age";
  l.plugins[1].has_worker = l.plugins[1].worker_quarantined = true;
  l.plugins[1].worker_calls = 7;
  l.plugins[1].worker_call_s = 0.5;
  l.plugins[1].worker_restarts = 4;
  l.plugins[1].worker_fallback_calls = 9;
  return l;
}

void fill(Metrics& metrics) {
  RequestMetrics r = request();
  r.has_timings = true;
  r.timings.local_attn_ns = 1'000'000'000;
  r.timings.sparse_attn_ns = 3'000'000'000;
  r.timings.n_tokens = 10;
  r.timings.n_choices = 2;
  r.timings.blocks_chosen = 10;
  r.timings.blocks_chosen_again = 5;
  metrics.record(r);
  r.is_shadow = true;
  metrics.record(r);
  metrics.rejected("standard", "queue");
  metrics.http("/v1/models", 200, 0.001);
  metrics.exposed("try", "canary");
  metrics.stopped("try", "canary");
  metrics.set_lanes([] { return std::vector<LaneMetrics>{lane()}; });
}

// The value of the sample that a line of the text begins with; NaN when there is none.
double value(const std::string& text, const std::string& sample) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(sample + " ", 0) == 0) return std::stod(line.substr(sample.size() + 1));
  }
  return kNan;
}

size_t series(const std::string& text) {
  std::istringstream lines(text);
  size_t n = 0;
  for (std::string line; std::getline(lines, line);) n += line.rfind('#', 0) != 0;
  return n;
}

TEST(Metrics, RecordsAnEndedRequest) {
  const auto metrics = Metrics::make(names());
  metrics->record(request());
  const std::string text = metrics->text(), of = R"({arm="control",class="vip",)";
  EXPECT_EQ(value(text, "varve_requests_total" + of + R"(outcome="stop",stack="main"})"), 1)
      << text;
  EXPECT_EQ(value(text, "varve_prompt_tokens_total" + of + R"(stack="main"})"), 100);
  EXPECT_EQ(value(text, "varve_cached_prompt_tokens_total" + of + R"(stack="main"})"), 64);
  EXPECT_EQ(value(text, "varve_output_tokens_total" + of + R"(stack="main"})"), 4);
  EXPECT_EQ(value(text, "varve_inter_token_seconds_count" + of + R"(stack="main"})"), 3);
  EXPECT_EQ(value(text, "varve_inter_token_seconds_bucket" + of + R"(stack="main",le="0.05"})"), 2);
  EXPECT_EQ(
      value(text, "varve_time_to_first_token_seconds_bucket" + of + R"(stack="main",le="0.25"})"),
      0);
  EXPECT_EQ(
      value(text, "varve_time_to_first_token_seconds_bucket" + of + R"(stack="main",le="0.5"})"),
      1);
  EXPECT_EQ(value(text, "varve_request_seconds_sum" + of + R"(stack="main"})"), 2);
}

TEST(Metrics, WhatARequestDidNotReachIsNotObserved) {
  const auto metrics = Metrics::make(names());
  RequestMetrics r = request();
  r.outcome = "cancelled";
  r.prefill_s = r.ttft_s = kNan;
  metrics->record(r);
  const std::string text = metrics->text(), of = R"({arm="control",class="vip",stack="main"})";
  EXPECT_TRUE(std::isnan(value(text, "varve_time_to_first_token_seconds_count" + of)));
  EXPECT_EQ(value(text, "varve_queue_seconds_count" + of), 1);
}

TEST(Metrics, ShadowsAreNoPartOfTheService) {
  const auto metrics = Metrics::make(names());
  RequestMetrics r = request();
  r.is_shadow = true;
  metrics->record(r);
  const std::string text = metrics->text();
  EXPECT_EQ(text.find("varve_requests_total{"), std::string::npos);
  EXPECT_EQ(value(text, R"(varve_shadow_requests_total{outcome="stop",stack="main"})"), 1);
}

TEST(Metrics, RandomNamesAddNoSeries) {
  const auto metrics = Metrics::make(names());
  const auto name = [](int i) { return "x" + std::to_string(i * 7919); };
  const auto storm = [&](int from, int to) {
    for (int i = from; i < to; ++i) {
      RequestMetrics r = request(name(i));
      r.arm = r.stack = r.outcome = name(i);
      metrics->record(r);
      metrics->rejected(name(i), name(i));
      metrics->http(name(i), i, 0.1);
      metrics->exposed(name(i), name(i));
      metrics->stopped(name(i), name(i));
    }
  };
  storm(0, 1000);
  const size_t after_1000 = series(metrics->text());
  storm(1000, 10000);
  const std::string text = metrics->text();
  EXPECT_EQ(series(text), after_1000);
  EXPECT_EQ(value(text, R"(varve_requests_total{arm="other",class="other",)"
                        R"(outcome="other",stack="other"})"),
            9992)
      << "reloads may bring 8 stacks";
}

TEST(Metrics, LanesAreAskedAtEachScrape) {
  const auto metrics = Metrics::make(names());
  int asked = 0;
  metrics->set_lanes([&] {
    LaneMetrics l = lane();
    l.running = static_cast<uint32_t>(++asked);
    return std::vector<LaneMetrics>{l};
  });
  metrics->text();
  const std::string text = metrics->text();
  EXPECT_EQ(value(text, R"(varve_lane_running_requests{stack="main"})"), 2);
  EXPECT_EQ(value(text, R"(varve_lane_peak_mode{stack="main"})"), 1);
  EXPECT_EQ(value(text, R"(varve_kv_bytes{stack="main",tier="warm"})"), 1200);
  EXPECT_EQ(value(text, R"(varve_plugin_errors_total{stack="main",plugin="attention/hybrid"})"), 2);
  EXPECT_EQ(value(text, "k25_kv_hot_bytes"), 1000);
  EXPECT_EQ(value(text, "k25_kv_warm_bytes"), 1200);
  EXPECT_EQ(value(text, "k25_kv_cold_bytes"), 10);
  EXPECT_DOUBLE_EQ(value(text, "k25_warm_compression_ratio"), 0.7);  // 1200 of 4000
}

TEST(Metrics, PluginsWithAProcessOfTheirOwnHaveMore) {
  const auto metrics = Metrics::make(names());
  fill(*metrics);
  const std::string text = metrics->text(), of = R"({stack="main",plugin="kv_tier/age"})";
  EXPECT_EQ(value(text, "varve_worker_call_seconds_count" + of), 7) << text;
  EXPECT_EQ(value(text, "varve_worker_call_seconds_sum" + of), 0.5);
  EXPECT_EQ(value(text, "varve_worker_restarts_total" + of), 4);
  EXPECT_EQ(value(text, "varve_worker_quarantined" + of), 1);
  EXPECT_EQ(value(text, "varve_worker_fallback_calls_total" + of), 9);
  EXPECT_EQ(text.find(R"(varve_worker_restarts_total{stack="main",plugin="attention)"),
            std::string::npos);
}

TEST(Metrics, CompressionOfNoWarmBlocksIsNotClaimed) {
  const auto metrics = Metrics::make(names());
  metrics->set_lanes([] {
    LaneMetrics l = lane();
    l.usage.warm_tokens = l.usage.warm_bytes = 0;
    return std::vector<LaneMetrics>{l};
  });
  EXPECT_TRUE(std::isnan(value(metrics->text(), "k25_warm_compression_ratio")));
}

TEST(Metrics, TimingsAreSummed) {
  const auto metrics = Metrics::make(names());
  fill(*metrics);
  EXPECT_EQ(metrics->timings().sparse_attn_ns, 6'000'000'000u);  // a shadow's too
  const std::string text = metrics->text();
  EXPECT_EQ(value(text, R"(varve_attention_seconds_total{part="sparse",stack="main"})"), 6);
  EXPECT_EQ(value(text, R"(varve_attention_share_ratio{part="sparse"})"), 0.75);
  EXPECT_EQ(value(text, "varve_sparse_hit_ratio"), 0.5);
}

TEST(Metrics, AReloadThatFailedKeepsItsTime) {
  const auto metrics = Metrics::make(names());
  const std::string stamp = "varve_config_last_reload_success_timestamp_seconds";
  const double at_start = value(metrics->text(), stamp);
  EXPECT_EQ(value(metrics->text(), "varve_config_last_reload_successful"), 1);
  metrics->reloaded(false);
  EXPECT_EQ(value(metrics->text(), "varve_config_last_reload_successful"), 0);
  EXPECT_EQ(value(metrics->text(), stamp), at_start);
  metrics->reloaded(true);
  EXPECT_EQ(value(metrics->text(), "varve_config_last_reload_successful"), 1);
  EXPECT_GE(value(metrics->text(), stamp), at_start);
}

TEST(Metrics, TellsOfTheProcess) {
  const std::string text = Metrics::make(names())->text();
  EXPECT_EQ(value(text, R"(varve_build_info{model="tiny",version="1.2.3"})"), 1) << text;
  EXPECT_GT(value(text, "process_resident_memory_bytes"), 1 << 20);
  EXPECT_GE(value(text, "process_resident_memory_max_bytes"),
            value(text, "process_resident_memory_bytes") / 2);
  EXPECT_GE(value(text, "process_open_fds"), 3);
  EXPECT_GE(value(text, "process_max_fds"), value(text, "process_open_fds"));
  EXPECT_GE(value(text, "process_threads"), 1);
  EXPECT_GE(value(text, "process_cpu_seconds_total"), 0);
}

TEST(Metrics, ThreadsRecordWhileOthersScrape) {
  const auto metrics = Metrics::make(names());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) fill(*metrics);
    });
  }
  for (int i = 0; i < 20; ++i) EXPECT_NE(metrics->text(), "");
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(value(metrics->text(), R"(varve_requests_total{arm="control",class="vip",)"
                                   R"(outcome="stop",stack="main"})"),
            800);
}

// Every metric that an alert rule or a dashboard asks for is there once something has happened.
TEST(Metrics, AlertsAndDashboardsAskForWhatThereIs) {
  const auto metrics = Metrics::make(names());
  fill(*metrics);
  const std::string text = metrics->text();
  const std::regex name("\\b(varve|k25|process)_[a-z0-9_]+");
  size_t n_files = 0;
  for (const char* folder : {"alerts", "dashboards"}) {
    for (const auto& entry :
         std::filesystem::directory_iterator(VARVE_CONFIGS + ("/" + std::string(folder)))) {
      std::ostringstream file;
      file << std::ifstream(entry.path()).rdbuf();
      const std::string content = file.str();
      size_t n_names = 0;
      for (std::sregex_iterator at(content.begin(), content.end(), name), end; at != end; ++at) {
        ++n_names;
        const std::string line = std::string("\n").append(at->str());
        EXPECT_TRUE(text.find(line + " ") != std::string::npos ||
                    text.find(line + "{") != std::string::npos)
            << entry.path() << " asks for " << at->str();
      }
      EXPECT_GE(n_names, 10u) << entry.path();
      ++n_files;
    }
  }
  EXPECT_EQ(n_files, 2u);
}

}  // namespace
}  // namespace varve
