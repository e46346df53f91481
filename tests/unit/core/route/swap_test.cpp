// Reloads that change stacks: generations of lanes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>

#include "core/engine/turnstile.h"
#include "tests/unit/core/route/dispatcher_fixture.h"

namespace varve {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

void wait_until(const std::function<bool()>& is_so) {
  while (!is_so()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

class SwapTest : public DispatcherTest {
 protected:
  SwapTest() {
    digests_ = {{"main", "digest-of-main"}, {"full", ""}};
    loader_.digest = [this](const StackConfig& stack) -> absl::StatusOr<std::string> {
      return digests_[stack.name];
    };
    loader_.start = [this](const ServeConfig&,
                           const StackConfig& stack) -> absl::StatusOr<StartedLane> {
      if (while_loading_) while_loading_();
      if (stack.name == broken_) return absl::InternalError("no memory for the model");
      auto lane = std::make_unique<FakeLane>();
      lane->on_closed = [this] { ++n_closed_; };
      started_.push_back(lane.get());
      return StartedLane{std::move(lane), digests_[stack.name]};
    };
    config_ = two_classes();
  }
  ~SwapTest() override { dispatcher_.reset(); }

  void start() {
    make(config_);
    main_->on_closed = full_->on_closed = [this] { ++n_closed_; };
  }
  absl::StatusOr<std::vector<std::string>> reload() { return dispatcher_->reload(config_); }
  std::string refusal() { return std::string(reload().status().message()); }
  std::vector<std::string> names() {
    std::vector<std::string> names;
    for (const LaneInfo& info : dispatcher_->lanes()) names.push_back(info.name());
    return names;
  }

  ServeConfig config_;
  std::map<std::string, std::string> digests_;
  std::string broken_;
  std::function<void()> while_loading_;
  std::vector<FakeLane*> started_;
  std::atomic<int> n_closed_{0};
};

TEST_F(SwapTest, NewRequestsGoToTheNewGeneration) {
  start();
  ASSERT_TRUE(submit(anonymous()).ok());
  const std::shared_ptr<Sink> old = sink_;
  digests_["main"] = "another";
  const auto changes = reload();
  ASSERT_TRUE(changes.ok()) << changes.status();
  EXPECT_THAT(*changes, ElementsAre("stack main: generation 2, the one before ends with its last "
                                    "user"));
  ASSERT_EQ(started_.size(), 1u) << "full stays as it is";
  {
    const auto placement = dispatcher_->place(anonymous());
    EXPECT_EQ(placement->lane.get(), started_[0]);
    EXPECT_EQ(placement->digest, "another");
    EXPECT_EQ(placement->generation, 2u);
  }
  EXPECT_THAT(names(), ElementsAre("full", "main@1", "main"));
  ASSERT_TRUE(submit(anonymous()).ok());
  EXPECT_EQ(started_[0]->n_jobs(), 1u);
  EXPECT_EQ(n_closed_, 0) << "the old one has a request";
  EXPECT_EQ(old->n_ends, 0);
  main_->end();
  EXPECT_EQ(old->n_ends, 1);
  EXPECT_EQ(old->reason, FinishReason::kStop);
  wait_until([&] { return n_closed_ == 1; });
  EXPECT_THAT(names(), ElementsAre("full", "main"));
}

TEST_F(SwapTest, NothingIsLoadedForNothing) {
  start();
  config_.classes[0].priority = 3;
  ASSERT_TRUE(reload().ok());
  EXPECT_TRUE(started_.empty());
  EXPECT_EQ(n_closed_, 0);
}

TEST_F(SwapTest, WhoHasMemoryInAGenerationStaysThere) {
  start();
  auto earlier = std::make_unique<Placement>(*dispatcher_->place(anonymous()));
  digests_["main"] = "another";
  ASSERT_TRUE(reload().ok());
  {
    Placement placement = *dispatcher_->place(anonymous());
    EXPECT_NE(placement.lane.get(), main_);
    stay_with(*earlier, &placement);
    EXPECT_EQ(placement.lane.get(), main_);
    EXPECT_EQ(placement.generation, 1u);
    EXPECT_EQ(placement.digest, "digest-of-main");
    Arrival vip = anonymous();
    vip.who.class_name = "vip";
    placement = *dispatcher_->place(vip);
    stay_with(*earlier, &placement);
    EXPECT_EQ(placement.lane.get(), full_) << "another stack";
  }
  EXPECT_EQ(n_closed_, 0);
  earlier.reset();
  wait_until([&] { return n_closed_ == 1; });
}

TEST_F(SwapTest, AFailingLoadKeepsTheOld) {
  start();
  digests_ = {{"main", "another"}, {"full", "another"}};
  config_.classes[0].priority = 3;
  broken_ = "full";
  EXPECT_EQ(refusal(), "stack full: no memory for the model");
  EXPECT_EQ(dispatcher_->place(anonymous())->lane.get(), main_);
  EXPECT_EQ(dispatcher_->config().classes[0].priority, 0u);
  wait_until([&] { return n_closed_ == 1; });  // main's, which had been loaded
  EXPECT_THAT(names(), ElementsAre("full", "main"));
  broken_ = "";
  EXPECT_TRUE(reload().ok());
}

TEST_F(SwapTest, AProcessTakesSoManyGenerations) {
  start();
  for (uint32_t i = 0; i < kGenerationsMax; ++i) {
    digests_["main"] = absl::StrCat("digest ", i);
    ASSERT_TRUE(reload().ok());
  }
  wait_until([&] { return n_closed_ == static_cast<int>(kGenerationsMax); });
  digests_["main"] = "one more";
  EXPECT_THAT(refusal(), HasSubstr("expected a restart"));
  EXPECT_EQ(dispatcher_->place(anonymous())->generation, kGenerationsMax + 1);
  config_.classes[0].priority = 3;
  digests_["main"] = absl::StrCat("digest ", kGenerationsMax - 1);
  EXPECT_TRUE(reload().ok()) << "the rest can still be reloaded";
}

TEST_F(SwapTest, StacksComeAndGo) {
  start();
  config_.stacks.push_back(config_.stacks[1]);
  config_.stacks.back().name = "canary";
  digests_["canary"] = "digest-of-canary";
  ASSERT_TRUE(reload().ok());
  EXPECT_TRUE(started_.empty()) << "nobody uses it";
  config_.experiments = {half_on_full()};
  config_.experiments[0].arms[1].stack = "canary";
  const auto changes = reload();
  ASSERT_TRUE(changes.ok()) << changes.status();
  EXPECT_THAT(*changes, Contains("stack canary: generation 1"));
  EXPECT_EQ(dispatcher_->place(anonymous(conversation_on("canary")))->digest, "digest-of-canary");
  config_.experiments.clear();
  EXPECT_THAT(*reload(), Contains("stack canary: ends with its last user"));
  wait_until([&] { return n_closed_ == 1; });
  EXPECT_THAT(names(), ElementsAre("full", "main"));
}

TEST_F(SwapTest, AnExperimentKeepsWhatItCompares) {
  config_.experiments = {half_on_full()};
  start();
  digests_["full"] = "another";
  EXPECT_THAT(refusal(), HasSubstr("stack full: found another plugin, parameter or model in it, "
                                   "which experiment.canary compares"));
  EXPECT_TRUE(started_.empty());
  ++config_.experiments[0].version;
  EXPECT_TRUE(reload().ok());
  EXPECT_EQ(started_.size(), 1u);
}

TEST_F(SwapTest, OneReloadAtATime) {
  start();
  digests_["main"] = "another";
  std::string meanwhile;
  while_loading_ = [&] { meanwhile = refusal(); };
  EXPECT_TRUE(reload().ok());
  EXPECT_THAT(meanwhile, HasSubstr("found a reload under way"));
  EXPECT_TRUE(reload().ok());
}

TEST_F(SwapTest, AReloadThatThrowsDoesNotBarTheNext) {
  start();
  digests_["main"] = "another";
  while_loading_ = [] { throw std::bad_alloc(); };
  EXPECT_THROW((void)reload(), std::bad_alloc);
  while_loading_ = {};
  EXPECT_TRUE(reload().ok());
}

TEST_F(SwapTest, TheExposureNamesTheGeneration) {
  config_.experiments = {half_on_full()};
  start();
  ASSERT_TRUE(submit(anonymous(conversation_on("main"))).ok());
  ++config_.experiments[0].version;
  digests_["main"] = "another";
  ASSERT_TRUE(reload().ok());
  main_->end();
  ASSERT_TRUE(submit(anonymous(conversation_on("main"))).ok());
  started_[0]->end();
  const std::vector<Exposure> rows = logged_.all_rows();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].stack_digest, "digest-of-main");
  EXPECT_EQ(rows[1].stack_digest, "another");
}

// The real lane on the fake runtime, swapped while four threads ask.
class Answer final : public GenerateSink {
 public:
  void on_piece(Piece) override { ++n_pieces; }
  void on_end(const GenerateResult& result) override {
    reason = result.reason;
    has_ended.store(true);
  }
  int n_pieces = 0;
  FinishReason reason = FinishReason::kError;
  std::atomic<bool> has_ended{false};
};

std::unique_ptr<Lane> real_lane(Turnstile* turnstile) {
  StackSpec spec;
  spec.plugin_directories = {VARVE_PLUGIN_DIRECTORY};
  spec.plugins = {{"runtime", "fake", {}}};
  auto stack = load_stack(spec);
  EXPECT_TRUE(stack.ok()) << stack.status();
  LaneOptions options;
  options.name = "main";
  options.queue_max = 64;
  auto lane = Lane::start(options, *std::move(stack), turnstile);
  EXPECT_TRUE(lane.ok()) << lane.status();
  return *std::move(lane);
}

TEST(SwapUnderLoad, EveryRequestEndsRight) {
  Turnstile turnstile;
  FakeMetrics metrics;
  ServeConfig config = two_classes();
  config.stacks.pop_back();
  config.classes.pop_back();
  std::atomic<int> digest{0};
  DispatcherParts parts;
  parts.metrics = &metrics;
  parts.lanes["main"] = real_lane(&turnstile);
  parts.stack_digests["main"] = "0";
  parts.loader.digest = [&](const StackConfig&) { return absl::StrCat(digest.load()); };
  parts.loader.start = [&](const ServeConfig&, const StackConfig&) {
    return StartedLane{real_lane(&turnstile), absl::StrCat(digest.load())};
  };
  auto made = Dispatcher::make(config, std::move(parts));
  ASSERT_TRUE(made.ok()) << made.status();
  const std::unique_ptr<Dispatcher> dispatcher = *std::move(made);

  std::atomic<bool> stops{false};
  std::atomic<int> n_right{0}, n_wrong{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      while (!stops) {
        const auto sink = std::make_shared<Answer>();
        GenerateRequest one = request(8, 12);
        one.min_tokens = 12;
        const auto placement = dispatcher->place(anonymous());
        const bool is_taken =
            placement.ok() &&
            dispatcher->submit(anonymous(), *placement, std::move(one), sink, nullptr).ok();
        if (is_taken) wait_until([&] { return sink->has_ended.load(); });
        const bool is_right =
            is_taken && sink->reason == FinishReason::kLength && sink->n_pieces == 12;
        ++(is_right ? n_right : n_wrong);
      }
    });
  }
  for (uint32_t i = 0; i < kGenerationsMax; ++i) {
    const int before = n_right;
    wait_until([&] { return n_right > before + 8 || n_wrong > 0; });
    ++digest;
    const auto changes = dispatcher->reload(config);
    EXPECT_TRUE(changes.ok()) << changes.status();
  }
  stops = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(n_wrong, 0);
  wait_until([&] { return dispatcher->lanes().size() == 1; });
  EXPECT_EQ(dispatcher->lanes()[0].name(), "main");
  EXPECT_EQ(dispatcher->lanes()[0].generation, kGenerationsMax + 1);
}

}  // namespace
}  // namespace varve
