#include "core/route/dispatcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/unit/core/route/dispatcher_fakes.h"

namespace varve {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

class Sink final : public GenerateSink {
 public:
  void on_piece(Piece piece) override { text += piece.text; }
  void on_end(const GenerateResult& result) override {
    ++n_ends;
    reason = result.reason;
  }
  std::string text;
  int n_ends = 0;
  FinishReason reason = FinishReason::kError;
};

ClassConfig a_class(std::string name, std::string stack, uint32_t priority) {
  ClassConfig one;
  one.name = std::move(name);
  one.stack = std::move(stack);
  one.priority = priority;
  one.deadline = absl::InfiniteDuration();
  return one;
}

ServeConfig two_classes() {
  ServeConfig config;
  for (const char* name : {"main", "full"}) {
    StackConfig stack;
    stack.name = name;
    stack.profile = *Profile::parse("", {});
    config.stacks.push_back(std::move(stack));
  }
  config.classes = {a_class("standard", "main", 0), a_class("vip", "full", 10)};
  return config;
}

ExperimentConfig half_on_full() {
  ExperimentConfig experiment;
  experiment.name = "canary";
  experiment.class_name = "standard";
  experiment.salt = "a salt of the tests";
  experiment.arms = {{"main", 50}, {"full", 50}};
  experiment.min_units = 10;
  return experiment;
}

Arrival anonymous(std::string conversation = "") {
  Arrival arrival;
  arrival.who = {"anonymous", "anonymous", "standard", {}, Scope::kInference};
  arrival.conversation = std::move(conversation);
  return arrival;
}

GenerateRequest request(size_t n_prompt = 4, uint64_t max_tokens = 16) {
  GenerateRequest request;
  request.id = "req-1";
  request.prompt.assign(n_prompt, 1);
  request.max_tokens = max_tokens;
  return request;
}

class DispatcherTest : public testing::Test {
 protected:
  void make(ServeConfig config) {
    DispatcherParts parts;
    for (auto* lane : {&main_, &full_}) {
      auto made = std::make_unique<FakeLane>();
      *lane = made.get();
      parts.lanes[lane == &main_ ? "main" : "full"] = std::move(made);
    }
    parts.metrics = &metrics_;
    parts.log = std::make_unique<FakeLog>(&logged_);
    parts.stack_digests = {{"main", "digest-of-main"}};
    parts.on_ended = [this](const Placement& placement, const GenerateRequest& of,
                            const std::vector<int32_t>& answer, const GenerateResult&) {
      offered_.push_back(absl::StrCat(placement.arm, " ", of.prompt.size(), " ", answer.size()));
    };
    auto made = Dispatcher::make(std::move(config), std::move(parts));
    ASSERT_TRUE(made.ok()) << made.status();
    dispatcher_ = *std::move(made);
  }

  absl::Status submit(const Arrival& arrival, GenerateRequest of = request()) {
    const auto placement = dispatcher_->place(arrival);
    if (!placement.ok()) return placement.status();
    sink_ = std::make_shared<Sink>();
    return dispatcher_->submit(arrival, *placement, std::move(of), sink_, nullptr);
  }

  // A conversation that falls on the arm.
  std::string conversation_on(const std::string& arm, int from = 0) {
    for (int i = from;; ++i) {
      const std::string name = absl::StrCat("conversation ", i);
      if (dispatcher_->place(anonymous(name))->arm == arm) return name;
    }
  }

  FakeMetrics metrics_;
  Logged logged_;
  std::vector<std::string> offered_;
  FakeLane *main_ = nullptr, *full_ = nullptr;
  std::shared_ptr<Sink> sink_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

TEST_F(DispatcherTest, ClassDecidesStackPriorityAndLimits) {
  ServeConfig config = two_classes();
  config.classes[1].deadline = absl::Seconds(60);
  config.classes[1].max_answer_tokens = 8;
  make(config);
  Arrival arrival = anonymous();
  EXPECT_EQ(dispatcher_->place(arrival)->lane, main_);
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
  EXPECT_EQ(&dispatcher_->main_lane(), main_);
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

TEST_F(DispatcherTest, ConversationsAreSplitAndStay) {
  ServeConfig config = two_classes();
  config.experiments = {half_on_full()};
  make(config);
  int n_full = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto placement = dispatcher_->place(anonymous(absl::StrCat(i)));
    ASSERT_EQ(placement->arm, dispatcher_->place(anonymous(absl::StrCat(i)))->arm);
    ASSERT_EQ(placement->arm, placement->stack);
    ASSERT_EQ(placement->lane, placement->arm == "full" ? full_ : main_);
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
  EXPECT_EQ(row.wall_s, 100);
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
  EXPECT_EQ(dispatcher_->stop_arm("canary", "main", "why").code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(dispatcher_->stop_arm("canary", "full", "first").ok());
  EXPECT_TRUE(dispatcher_->stop_arm("canary", "full", "second").ok());
  EXPECT_EQ(dispatcher_->experiments()[0].arms[1].stopped, "first");
}

TEST_F(DispatcherTest, AStopOutlivesTheServer) {
  char folder[] = "/tmp/varve-log-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
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
  EXPECT_EQ(dispatcher_->place(anonymous(conversation_on("main-2")))->lane, main_);
  EXPECT_EQ(dispatcher_->place(anonymous(conversation_on("main")))->lane, main_);
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
  config.experiments.clear();
  EXPECT_THAT(*dispatcher_->reload(config), ElementsAre("experiment.canary: gone"));
  EXPECT_THAT(logged_.all_events(), ElementsAre("canary: started", "canary: arm stopped",
                                                "canary: started", "canary: ended"));
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
    char name[] = "/tmp/varve-keys-XXXXXX";
    close(mkstemp(name));
    path_ = name;
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
      config.experiments[0].version = i;
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
}

}  // namespace
}  // namespace varve
