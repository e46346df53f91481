#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <thread>
#include <tuple>

#include "tests/unit/core/route/dispatcher_fixture.h"

namespace varve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(DispatcherTest, ConversationsAreSplitAndStay) {
  ServeConfig config = two_classes();
  config.experiments = {half_on_full()};
  make(config);
  int n_full = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto placement = dispatcher_->place(anonymous(absl::StrCat(i)));
    ASSERT_EQ(placement->arm, dispatcher_->place(anonymous(absl::StrCat(i)))->arm);
    ASSERT_EQ(placement->arm, placement->stack);
    ASSERT_EQ(placement->lane.get(), placement->arm == "full" ? full_ : main_);
    n_full += placement->arm == "full" ? 1 : 0;
  }
  EXPECT_NEAR(n_full, 500, 80);
  Arrival vip = anonymous("1");
  vip.who.class_name = "vip";
  EXPECT_EQ(dispatcher_->place(vip)->experiment, "");
}

TEST_F(DispatcherTest, OnlyAdminsForceAnArm) {
  ServeConfig config = two_classes();
  config.experiments = {half_on_full()};
  make(config);
  Arrival arrival = anonymous(conversation_on("main"));
  arrival.forced_arm = "full";
  EXPECT_EQ(dispatcher_->place(arrival).status().code(), absl::StatusCode::kPermissionDenied);
  arrival.who.scope = Scope::kAdmin;
  ASSERT_TRUE(dispatcher_->place(arrival).ok());
  EXPECT_EQ(dispatcher_->place(arrival)->arm, "full");
  EXPECT_TRUE(dispatcher_->place(arrival)->assignment.forced);
  arrival.forced_arm = "ful";
  EXPECT_EQ(dispatcher_->place(arrival).status().code(), absl::StatusCode::kNotFound);
  arrival.who.class_name = "vip";
  EXPECT_EQ(dispatcher_->place(arrival).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(DispatcherTest, LogsWhoWasExposed) {
  ServeConfig config = two_classes();
  config.experiments = {half_on_full()};
  make(config);
  const double before_s = absl::ToUnixMicros(absl::Now()) / 1e6;
  ASSERT_TRUE(submit(anonymous(conversation_on("main"))).ok());
  EXPECT_EQ(metrics_.counts()["exposed canary main"], 0);
  ASSERT_TRUE(main_->end());
  EXPECT_EQ(metrics_.counts()["exposed canary main"], 1);
  ASSERT_EQ(logged_.all_rows().size(), 1u);
  const Exposure row = logged_.all_rows()[0];
  EXPECT_EQ(row.experiment, "canary");
  EXPECT_EQ(row.version, 1u);
  EXPECT_EQ(row.arm, "main");
  EXPECT_EQ(row.class_name, "standard");
  EXPECT_EQ(row.request_id, "req-1");
  EXPECT_EQ(row.stack_digest, "digest-of-main");
  // Its arrival, on the wall's clock and not on the lane's.
  EXPECT_GE(row.wall_s, before_s - 0.001);
  EXPECT_EQ(row.ttft_ms, 3000);
  EXPECT_EQ(row.gap_p50_ms, 20);
  EXPECT_EQ(row.gap_p99_ms, 30);
  EXPECT_EQ(row.finish, "stop");
  EXPECT_EQ(row.error, "");
  EXPECT_FALSE(row.forced);
  EXPECT_THAT(logged_.all_events(), ElementsAre("canary: started"));
}

TEST_F(DispatcherTest, WhoEndsInTheQueueWasNotExposed) {
  ServeConfig config = two_classes();
  config.experiments = {half_on_full()};
  make(config);
  ASSERT_TRUE(submit(anonymous(conversation_on("full"))).ok());
  full_->end(FinishReason::kError, absl::DeadlineExceededError("late"), false);
  EXPECT_TRUE(logged_.all_rows().empty());
  EXPECT_EQ(metrics_.counts()["exposed canary full"], 0);
  EXPECT_EQ(dispatcher_->experiments()[0].arms[1].errors, 1u);
  EXPECT_TRUE(logged_.all_open().empty());
}

TEST_F(DispatcherTest, TellsWhoIsUnderWay) {
  ServeConfig config = two_classes();
  config.experiments = {half_on_full()};
  make(config);
  const auto open_rows = [&] {
    const std::vector<Exposure> rows = logged_.all_open();
    EXPECT_EQ(rows.size(), 1u);
    return rows.empty() ? Exposure{} : rows[0];
  };
  ASSERT_TRUE(submit(anonymous(conversation_on("full"))).ok());
  EXPECT_EQ(open_rows().finish, kWaiting);
  EXPECT_EQ(open_rows().arm, "full");
  EXPECT_EQ(open_rows().prompt_tokens, 4u);
  const auto full = [&] { return dispatcher_->experiments()[0].arms[1]; };
  EXPECT_EQ(full().open, 1u);
  EXPECT_EQ(full().unanswered, 1u);
  EXPECT_EQ(full().unanswered_ms_max, 1000);
  EXPECT_EQ(dispatcher_->experiments()[0].arms[0].open, 0u);
  full_->sink_of_last()->on_prompt_progress(1, 4, 0);
  EXPECT_EQ(open_rows().finish, kRunning);
  EXPECT_TRUE(std::isnan(open_rows().ttft_ms));
  full_->sink_of_last()->on_piece({7, "seven", {}});
  EXPECT_FALSE(std::isnan(open_rows().ttft_ms));
  EXPECT_EQ(full().open, 1u);
  EXPECT_EQ(full().unanswered, 0u);
  full_->end();
  EXPECT_TRUE(logged_.all_open().empty());
  EXPECT_EQ(full().open, 0u);
  full_->refuse(absl::ResourceExhaustedError("full"));
  EXPECT_FALSE(submit(anonymous(conversation_on("full"))).ok());
  EXPECT_TRUE(logged_.all_open().empty());
  EXPECT_EQ(full().requests, 1u);
}

TEST_F(DispatcherTest, AnArmWhoseRequestsAreLateIsStoppedBeforeTheyEnd) {
  for (const bool control_too : {false, true}) {
    ServeConfig config = two_classes();
    config.experiments = {half_on_full()};
    make(config);
    GenerateRequest late = request();
    late.deadline = absl::Now() - absl::Minutes(1);
    GenerateRequest in_time = request();
    in_time.deadline = absl::Now() + absl::Hours(1);
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(
          submit(anonymous(conversation_on("main", 1000 * i)), control_too ? late : in_time).ok());
    }
    for (int i = 0; i < 9; ++i)
      ASSERT_TRUE(submit(anonymous(conversation_on("full", 1000 * i)), late).ok());
    ASSERT_TRUE(submit(anonymous(conversation_on("full", 9000)), in_time).ok());
    EXPECT_EQ(dispatcher_->experiments()[0].arms[1].stopped, "");  // nine are too few
    ASSERT_TRUE(submit(anonymous(conversation_on("full", 10000)), late).ok());
    // Each request looks.
    ASSERT_TRUE(submit(anonymous(conversation_on("main")), in_time).ok());
    const ArmStatus full = dispatcher_->experiments()[0].arms[1];
    EXPECT_EQ(full.requests, 10u);
    EXPECT_EQ(full.errors, 10u);
    EXPECT_EQ(full.open, 11u);
    EXPECT_EQ(full.stopped.empty(), control_too);
    while (full_->end()) {
    }
    EXPECT_EQ(dispatcher_->experiments()[0].arms[1].requests, 11u);  // none of them twice
    EXPECT_EQ(dispatcher_->experiments()[0].arms[1].errors, 10u);
  }
}

TEST_F(DispatcherTest, OffersTheControlsRequestsForReplay) {
  ServeConfig config = two_classes();
  config.experiments = {half_on_full()};
  config.experiments[0].shadow_percent = 10;
  make(config);
  ASSERT_TRUE(submit(anonymous(conversation_on("main"))).ok());
  main_->end();
  ASSERT_TRUE(submit(anonymous(conversation_on("main"))).ok());
  main_->end(FinishReason::kCancelled, absl::CancelledError(""));
  ASSERT_TRUE(submit(anonymous(conversation_on("full"))).ok());
  full_->end();
  EXPECT_THAT(offered_, ElementsAre("main 4 1"));
}

TEST_F(DispatcherTest, AnArmWithMoreErrorsThanTheControlIsStopped) {
  ServeConfig config = two_classes();
  config.experiments = {half_on_full()};
  make(config);
  const auto end_on = [&](const std::string& arm, int n, FinishReason reason) {
    int i = 0;
    for (int done = 0; done < n; ++done, ++i) {
      const std::string name = conversation_on(arm, 1000 * done);
      ASSERT_TRUE(submit(anonymous(name)).ok());
      (arm == "full" ? full_ : main_)->end(reason, absl::InternalError("broken"));
    }
  };
  end_on("main", 20, FinishReason::kStop);
  end_on("full", 9, FinishReason::kError);
  EXPECT_EQ(dispatcher_->experiments()[0].arms[1].stopped, "");
  EXPECT_EQ(dispatcher_->experiments()[0].arms[1].weight, 50);
  end_on("full", 10, FinishReason::kError);
  const ArmStatus full = dispatcher_->experiments()[0].arms[1];
  EXPECT_THAT(full.stopped, HasSubstr("error rate 1.0000"));
  EXPECT_EQ(full.weight, 0);
  EXPECT_EQ(dispatcher_->config().experiments[0].arms[0].weight, 100);
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(dispatcher_->place(anonymous(absl::StrCat(i)))->arm, "main");
  EXPECT_THAT(logged_.all_events(), ElementsAre("canary: started", "canary: arm stopped"));
  EXPECT_EQ(metrics_.counts()["stopped canary full"], 1);
}

TEST_F(DispatcherTest, ErrorsThatTheControlHasTooStopNothing) {
  ServeConfig config = two_classes();
  config.experiments = {half_on_full()};
  make(config);
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(submit(anonymous(absl::StrCat(i))).ok());
    main_->end(FinishReason::kError, absl::InternalError("broken"));
    full_->end(FinishReason::kError, absl::InternalError("broken"));
  }
  EXPECT_EQ(dispatcher_->experiments()[0].arms[1].stopped, "");
}

TEST_F(DispatcherTest, WhatAStoppingServerCutsOffStopsNoArm) {
  ServeConfig config = two_classes();
  config.experiments = {half_on_full()};
  make(config);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(submit(anonymous(absl::StrCat(i))).ok());
  while (main_->end()) {
  }
  dispatcher_->drain(absl::Now());
  EXPECT_EQ(dispatcher_->experiments()[0].arms[1].stopped, "");
  EXPECT_GT(dispatcher_->experiments()[0].arms[1].requests, 10u);
}

QualitySample sample(uint64_t unit, double kld, double top1) {
  QualitySample sample;
  sample.experiment = "canary";
  sample.arm = "full";
  sample.unit_hash = unit;
  sample.mean_kld = kld;
  sample.top1_agreement = top1;
  return sample;
}

TEST_F(DispatcherTest, AnArmThatIsTooFarFromTheExactStackIsStopped) {
  for (const auto& [kld, top1, why] : std::vector<std::tuple<double, double, std::string>>{
           {0.02, 1, "kld_max"},
           {0, 0.98, "top1_min"},
           {std::numeric_limits<double>::quiet_NaN(), 1, "kld_max"},
           {0.01, 0.99, ""}}) {
    ServeConfig config = two_classes();
    config.experiments = {half_on_full()};
    make(config);
    for (uint64_t unit = 0; unit < 9; ++unit) dispatcher_->add_quality(sample(unit, kld, top1));
    EXPECT_EQ(dispatcher_->experiments()[0].arms[1].stopped, "");
    dispatcher_->add_quality(sample(9, kld, top1));
    const std::string stopped = dispatcher_->experiments()[0].arms[1].stopped;
    EXPECT_THAT(stopped, HasSubstr(why));
    EXPECT_EQ(stopped.empty(), why.empty());
  }
  dispatcher_->add_quality({});
  QualitySample old = sample(1, 0, 0);
  old.version = 7;
  dispatcher_->add_quality(old);
  EXPECT_EQ(dispatcher_->experiments()[0].arms[1].quality_samples, 10u);
}

TEST_F(DispatcherTest, StopArmWantsAnArmThatMayStop) {
  ServeConfig config = two_classes();
  config.experiments = {half_on_full()};
  make(config);
  EXPECT_EQ(dispatcher_->stop_arm("x", "full", "why").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(dispatcher_->stop_arm("canary", "x", "why").code(), absl::StatusCode::kNotFound);
  const absl::Status control = dispatcher_->stop_arm("canary", "main", "why");
  EXPECT_EQ(control.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(control.message()),
              testing::EndsWith("expected another one of main, full"));
  EXPECT_EQ(lines_.size(), 0u);
  EXPECT_TRUE(dispatcher_->stop_arm("canary", "full", "first").ok());
  EXPECT_TRUE(dispatcher_->stop_arm("canary", "full", "second").ok());
  EXPECT_EQ(dispatcher_->experiments()[0].arms[1].stopped, "first");
  EXPECT_EQ(lines_, std::vector<std::string>{"experiment canary: arm full stopped: first"});
}

TEST_F(DispatcherTest, AStopOutlivesTheServer) {
  std::string folder = testing::TempDir() + "log-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  ServeConfig config = two_classes();
  config.experiments = {half_on_full()};
  config.server.experiment_log_path = absl::StrCat(folder, "/log.sqlite");
  const auto start = [&] {
    DispatcherParts parts;
    parts.lanes["main"] = std::make_unique<FakeLane>();
    parts.lanes["full"] = std::make_unique<FakeLane>();
    parts.metrics = &metrics_;
    parts.log = *ExposureLog::open(config.server.experiment_log_path, 1 << 20);
    dispatcher_ = *Dispatcher::make(config, std::move(parts));
    return dispatcher_->experiments()[0].arms[1];
  };
  EXPECT_EQ(start().stopped, "");
  ASSERT_TRUE(dispatcher_->stop_arm("canary", "full", "slow: 2 x").ok());
  dispatcher_.reset();
  EXPECT_EQ(start().stopped, "slow: 2 x");
  EXPECT_EQ(dispatcher_->experiments()[0].arms[1].weight, 0);
  dispatcher_.reset();
  config.experiments[0].version = 2;
  EXPECT_EQ(start().stopped, "");
  EXPECT_EQ(dispatcher_->experiments()[0].arms[1].weight, 50);
  dispatcher_.reset();
  std::filesystem::remove_all(folder);
}

TEST_F(DispatcherTest, BothArmsOfAnAaRunOnOneStack) {
  ServeConfig config = two_classes();
  config.experiments = {half_on_full()};
  config.experiments[0].mode = "aa";
  config.experiments[0].arms[1].stack = "main";
  make(config);
  EXPECT_EQ(dispatcher_->place(anonymous(conversation_on("main-2")))->lane.get(), main_);
  EXPECT_EQ(dispatcher_->place(anonymous(conversation_on("main")))->lane.get(), main_);
}

TEST_F(DispatcherTest, AStoppedArmStaysStoppedUntilTheVersionChanges) {
  ServeConfig config = two_classes();
  config.experiments = {half_on_full()};
  make(config);
  ASSERT_TRUE(dispatcher_->stop_arm("canary", "full", "why").ok());
  config.experiments[0].arms = {{"main", 20}, {"full", 80}};
  ASSERT_TRUE(dispatcher_->reload(config).ok());
  EXPECT_EQ(dispatcher_->experiments()[0].arms[1].weight, 0);
  config.experiments[0].version = 2;
  config.experiments[0].salt = "a new salt for version 2";
  ASSERT_TRUE(dispatcher_->reload(config).ok());
  EXPECT_EQ(dispatcher_->experiments()[0].arms[1].weight, 80);
  EXPECT_EQ(dispatcher_->experiments()[0].arms[1].stopped, "");
  config.experiments[0].version = 1;
  EXPECT_THAT(dispatcher_->reload(config).status().message(),
              HasSubstr("canary.version: 2 -> 1, which needs to be higher"));
  config.experiments.clear();
  EXPECT_THAT(*dispatcher_->reload(config), ElementsAre("experiment.canary: gone"));
  EXPECT_THAT(logged_.all_events(), ElementsAre("canary: started", "canary: arm stopped",
                                                "canary: started", "canary: ended"));
}

// For ThreadSanitizer: traffic, its ends, reloads and stops at once; nothing is lost.
TEST_F(DispatcherTest, TrafficReloadsAndStopsAtOnce) {
  ServeConfig config = two_classes();
  config.experiments = {half_on_full()};
  make(config);
  constexpr int kRequests = 300;
  std::atomic<int> n_sent{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRequests; ++i) {
        const Arrival arrival = anonymous(absl::StrCat(t, " ", i));
        const auto placement = dispatcher_->place(arrival);
        if (dispatcher_->submit(arrival, *placement, request(), std::make_shared<Sink>(), nullptr)
                .ok())
          ++n_sent;
      }
    });
  }
  threads.emplace_back([&] {
    while (!done) {
      main_->end();
      full_->end(FinishReason::kError, absl::InternalError("broken"));
    }
  });
  threads.emplace_back([&] {
    for (uint32_t i = 0; !done; ++i) {
      config.classes[1].priority = i % 100;
      config.experiments[0].version = 1 + i;
      EXPECT_TRUE(dispatcher_->reload(config).ok());
      (void)dispatcher_->stop_arm("canary", "full", "why");
      (void)dispatcher_->experiments();
    }
  });
  for (int t = 0; t < 3; ++t) threads[static_cast<size_t>(t)].join();
  done = true;
  threads[3].join();
  threads[4].join();
  dispatcher_->drain(absl::Now());
  EXPECT_EQ(metrics_.records().size(), static_cast<size_t>(n_sent.load()));
  EXPECT_EQ(n_sent, 3 * kRequests);
  EXPECT_TRUE(logged_.all_open().empty());
}

}  // namespace
}  // namespace varve
