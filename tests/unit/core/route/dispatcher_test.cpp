#include "core/route/dispatcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>

#include "tests/unit/core/route/dispatcher_fixture.h"

namespace varve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(DispatcherTest, ClassDecidesStackPriorityAndLimits) {
  ServeConfig config = two_classes();
  config.classes[1].deadline = absl::Seconds(60);
  config.classes[1].max_answer_tokens = 8;
  make(config);
  Arrival arrival = anonymous();
  EXPECT_EQ(dispatcher_->place(arrival)->lane.get(), main_);
  EXPECT_EQ(dispatcher_->place(arrival)->deadline, absl::InfiniteFuture());
  arrival.who.class_name = "vip";
  arrival.who.tenant = "team";
  ASSERT_TRUE(submit(arrival).ok());
  const GenerateRequest got = full_->last();
  EXPECT_EQ(got.tenant, "team");
  EXPECT_EQ(got.class_name, "vip");
  EXPECT_EQ(got.priority, 10u);
  EXPECT_EQ(got.max_tokens, 8u);
  EXPECT_LE(got.deadline, absl::Now() + absl::Seconds(60));
  EXPECT_EQ(dispatcher_->main_lane().get(), main_);
}

TEST_F(DispatcherTest, WithoutKeysNobodyChoosesATier) {
  make(two_classes());
  const auto who = dispatcher_->authenticate("");
  ASSERT_TRUE(who.ok());
  EXPECT_EQ(who->class_name, "standard");
  EXPECT_EQ(who->scope, Scope::kAdmin);
  Arrival arrival{*who, "priority", "", ""};
  EXPECT_EQ(dispatcher_->place(arrival).status().code(), absl::StatusCode::kPermissionDenied);
  arrival.service_tier = "auto";
  EXPECT_TRUE(dispatcher_->place(arrival).ok());
  arrival.who.class_name = "gone";
  EXPECT_EQ(dispatcher_->place(arrival).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(DispatcherTest, APublicServerWithoutKeysHasNoAdmins) {
  ServeConfig config = two_classes();
  config.server.allow_public_without_keys = true;
  make(config);
  EXPECT_EQ(dispatcher_->authenticate("")->scope, Scope::kInference);
}

TEST_F(DispatcherTest, APromptTooLongNamesLimitAndFound) {
  ServeConfig config = two_classes();
  config.classes[0].max_prompt_tokens = 100;
  make(config);
  EXPECT_TRUE(submit(anonymous(), request(100)).ok());
  const absl::Status status = submit(anonymous(), request(101));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("101 tokens; expected at most 100"));
  EXPECT_EQ(metrics_.counts()["rejected standard invalid"], 1);
}

TEST_F(DispatcherTest, AFullQueueSaysWhenToComeBack) {
  make(two_classes());
  main_->refuse(absl::ResourceExhaustedError("the queue is full"));
  const absl::Status status = submit(anonymous());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(retry_after(status), absl::Milliseconds(2500));
  main_->refuse(absl::UnavailableError("draining"));
  EXPECT_EQ(submit(anonymous()).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(metrics_.counts()["rejected standard queue"], 1);
  EXPECT_EQ(metrics_.counts()["rejected standard draining"], 1);
  EXPECT_TRUE(metrics_.records().empty());
}

TEST_F(DispatcherTest, ItsSinkSeesAllAndTheEndIsRecordedOnce) {
  make(two_classes());
  ASSERT_TRUE(submit(anonymous()).ok());
  ASSERT_TRUE(main_->end(FinishReason::kLength));
  EXPECT_EQ(sink_->text, "seven");
  EXPECT_EQ(sink_->n_ends, 1);
  EXPECT_EQ(sink_->reason, FinishReason::kLength);
  ASSERT_EQ(metrics_.records().size(), 1u);
  const RequestMetrics record = metrics_.records()[0];
  EXPECT_EQ(record.outcome, "length");
  EXPECT_EQ(record.stack, "main");
  EXPECT_EQ(record.arm, "");
  EXPECT_EQ(record.queue_s, 1);
  EXPECT_EQ(record.prefill_s, 2);
  EXPECT_EQ(record.ttft_s, 3);
  EXPECT_EQ(record.total_s, 4);
  EXPECT_TRUE(logged_.all_rows().empty());
}

TEST_F(DispatcherTest, WhatLanesAbortAtTheEndIsStillRecorded) {
  make(two_classes());
  ASSERT_TRUE(submit(anonymous()).ok());
  dispatcher_.reset();
  EXPECT_EQ(sink_->n_ends, 1);
  EXPECT_EQ(metrics_.records().size(), 1u);
}

TEST_F(DispatcherTest, DrainEndsAllLanes) {
  make(two_classes());
  ASSERT_TRUE(submit(anonymous()).ok());
  Arrival vip = anonymous();
  vip.who.class_name = "vip";
  ASSERT_TRUE(submit(vip).ok());
  dispatcher_->drain(absl::Now());
  EXPECT_EQ(main_->n_jobs() + full_->n_jobs(), 0u);
}

TEST_F(DispatcherTest, ReloadTellsWhatChanged) {
  ServeConfig config = two_classes();
  config.experiments = {half_on_full()};
  make(config);
  EXPECT_THAT(*dispatcher_->reload(config), ElementsAre());
  config.classes[1].priority = 20;
  config.classes.push_back(a_class("batch", "main", 0));
  config.classes.back().yields_summaries_at_peak = true;
  config.stacks[0].concurrency = 3;
  config.stacks[0].peak_queue_percent = 50;
  config.experiments[0].arms = {{"main", 40}, {"full", 60}};
  const auto changes = dispatcher_->reload(config);
  ASSERT_TRUE(changes.ok()) << changes.status();
  EXPECT_THAT(*changes, ElementsAre("class.vip.priority: 10 -> 20",
                                    "experiment.canary.arms: main:50 full:50 -> main:40 full:60",
                                    "stack.main.concurrency: 16 -> 3",
                                    "stack.main.peak_queue_percent: 0 -> 50", "class.batch: new"));
  EXPECT_EQ(main_->options().concurrency, 3u);
  EXPECT_THAT(main_->options().peak_classes, ElementsAre("batch"));
  Arrival vip = anonymous();
  vip.who.class_name = "vip";
  EXPECT_EQ(dispatcher_->place(vip)->priority, 20u);
  EXPECT_THAT(logged_.all_events(), ElementsAre("canary: started", "canary: weights changed"));
}

TEST_F(DispatcherTest, ReloadIsAllOrNothing) {
  ServeConfig config = two_classes();
  config.experiments = {half_on_full()};
  make(config);
  const auto refusal = [&](const std::function<void(ServeConfig&)>& change) {
    ServeConfig changed = config;
    changed.classes[1].priority = 20;
    change(changed);
    const auto changes = dispatcher_->reload(changed);
    EXPECT_EQ(dispatcher_->config().classes[1].priority, 10u);
    return changes.ok() ? "no error" : std::string(changes.status().message());
  };
  EXPECT_THAT(refusal([](ServeConfig& c) { c.server.port = 1; }),
              HasSubstr("server.port: 8080 -> 1, which needs a restart"));
  EXPECT_THAT(refusal([](ServeConfig& c) {
                c.stacks[1].profile = *Profile::parse("[attention]\nplugin=\"dense\"", {});
              }),
              HasSubstr("stack.full.attention.plugin: \"hybrid\" -> \"dense\", which needs"));
  EXPECT_THAT(refusal([](ServeConfig& c) { c.stacks.pop_back(); }),
              HasSubstr("stack.full: gone, which needs a restart"));
  const std::string salt =
      refusal([](ServeConfig& c) { c.experiments[0].salt = "another salt, a secret"; });
  EXPECT_THAT(salt, HasSubstr("experiment.canary.salt: changed, which needs a higher version"));
  EXPECT_THAT(refusal([](ServeConfig& c) { c.classes[0].stack = "nowhere"; }),
              HasSubstr("no lane"));
  EXPECT_THAT(refusal([](ServeConfig& c) { c.server.default_class = "gone"; }),
              HasSubstr("default_class"));
  EXPECT_THAT(refusal([](ServeConfig& c) { c.server.keys_path = "/nowhere/keys.toml"; }),
              HasSubstr("/nowhere/keys.toml"));
}

TEST_F(DispatcherTest, WantsALaneForEachStackAndALogForExperiments) {
  EXPECT_FALSE(Dispatcher::make(two_classes(), {}).ok());
  ServeConfig config = two_classes();
  config.experiments = {half_on_full()};
  DispatcherParts parts;
  parts.lanes["main"] = std::make_unique<FakeLane>();
  parts.lanes["full"] = std::make_unique<FakeLane>();
  parts.metrics = &metrics_;
  EXPECT_THAT(std::string(Dispatcher::make(config, std::move(parts)).status().message()),
              HasSubstr("experiment_log_path"));
}

class DispatcherWithKeysTest : public DispatcherTest {
 protected:
  DispatcherWithKeysTest() {
    path_ = testing::TempDir() + "keys-XXXXXX";
    close(mkstemp(path_.data()));
  }
  ~DispatcherWithKeysTest() override { unlink(path_.c_str()); }

  // The key "vip key".
  void write_keys(const std::string& more) {
    std::ofstream(path_) << "[key.team]\nsha256 = "
                            "\"70b78311a0ad91753778ba9c2f8901e71c9744feecf7895b02a1d1dad24ff888\"\n"
                            "tenant = \"team\"\nclass = \"standard\"\n"
                         << more;
  }
  ServeConfig config() const {
    ServeConfig config = two_classes();
    config.server.keys_path = path_;
    return config;
  }

  std::string path_;
};

TEST_F(DispatcherWithKeysTest, TierAndQuotaComeFromTheKey) {
  write_keys("tiers = [\"priority:vip\"]\ntokens_per_minute = 50\n");
  make(config());
  EXPECT_EQ(dispatcher_->authenticate("").status().code(), absl::StatusCode::kUnauthenticated);
  Arrival arrival{*dispatcher_->authenticate("vip key"), "priority", "", ""};
  EXPECT_EQ(dispatcher_->place(arrival)->class_name, "vip");
  ASSERT_TRUE(submit(arrival, request(20, 20)).ok());
  const absl::Status status = submit(arrival, request(20, 20));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GT(retry_after(status), absl::Seconds(1));
  EXPECT_EQ(metrics_.counts()["rejected vip quota"], 1);
  full_->end();  // used 21 of 40
  EXPECT_TRUE(submit(arrival, request(9, 20)).ok());
  full_->end(FinishReason::kError, absl::DeadlineExceededError("late"), false);
  EXPECT_TRUE(submit(arrival, request(9, 20)).ok());
}

TEST_F(DispatcherWithKeysTest, WhatTheLaneRefusesCostsNoTokens) {
  write_keys("tokens_per_minute = 50\n");
  make(config());
  const Arrival arrival{*dispatcher_->authenticate("vip key"), "", "", ""};
  main_->refuse(absl::ResourceExhaustedError("full"));
  for (int i = 0; i < 10; ++i) {
    submit(arrival, request(20, 20)).IgnoreError();
  }
  EXPECT_EQ(metrics_.counts()["rejected standard queue"], 10);
}

TEST_F(DispatcherWithKeysTest, ABrokenKeysFileKeepsTheOld) {
  write_keys("");
  make(config());
  write_keys("clas = 1\n");
  EXPECT_THAT(std::string(dispatcher_->reload(config()).status().message()),
              HasSubstr("did you mean \"class\"?"));
  EXPECT_TRUE(dispatcher_->authenticate("vip key").ok());
  write_keys("scope = \"admin\"\n");
  const auto changes = dispatcher_->reload(config());
  ASSERT_TRUE(changes.ok()) << changes.status();
  EXPECT_THAT(*changes, ElementsAre("keys: read from " + path_));
  EXPECT_EQ(dispatcher_->authenticate("vip key")->scope, Scope::kAdmin);
}

TEST_F(DispatcherWithKeysTest, AClassThatAKeyHasCannotGo) {
  write_keys("tiers = [\"priority:vip\"]\n");
  make(config());
  ServeConfig without = config();
  without.classes.pop_back();
  EXPECT_THAT(std::string(dispatcher_->reload(without).status().message()), HasSubstr("\"vip\""));
  EXPECT_EQ(dispatcher_->config().classes.size(), 2u);
}

}  // namespace
}  // namespace varve
