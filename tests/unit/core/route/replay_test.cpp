#include "core/route/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/route/forced_text.h"
#include "tests/unit/core/engine/lane_fixture.h"
#include "tests/unit/core/route/dispatcher_fakes.h"

namespace varve {
namespace {

std::vector<int32_t> bytes(std::string_view text) { return {text.begin(), text.end()}; }

// Two stacks on the fake runtime behind a dispatcher; requests of the class go to the control.
class ReplayTest : public testing::Test {
 protected:
  using Params = std::vector<std::pair<std::string, Value>>;

  void start(double shadow_percent, Params lossy = {}, uint32_t concurrency = 16) {
    ServeConfig config;
    for (const char* name : {"main", "lossy"}) {
      StackConfig stack;
      stack.name = name;
      stack.profile = *Profile::parse("", {});
      config.stacks.push_back(std::move(stack));
    }
    ClassConfig standard;
    standard.name = "standard";
    standard.deadline = absl::InfiniteDuration();
    config.classes = {standard};
    ExperimentConfig experiment;
    experiment.name = "memory";
    experiment.class_name = "standard";
    experiment.salt = "a salt of the tests";
    experiment.arms = {{"main", 100}, {"lossy", 0}};
    experiment.shadow_percent = shadow_percent;
    config.experiments = {experiment};

    DispatcherParts parts;
    for (const StackConfig& stack : config.stacks) {
      LaneOptions options;
      options.name = stack.name;
      options.concurrency = options.concurrency_max = concurrency;
      auto lane = Lane::start(options, load(stack.name == "lossy" ? lossy : Params{}), &turnstile_);
      ASSERT_TRUE(lane.ok()) << lane.status();
      parts.lanes[stack.name] = *std::move(lane);
    }
    auto log = std::make_unique<FakeLog>(&logged_);
    ReplayParts with{nullptr, &turnstile_, log.get(), &metrics_};
    parts.log = std::move(log);
    parts.metrics = &metrics_;
    parts.stack_digests = {{"lossy", "digest"}};
    parts.on_ended = [this](const Placement& placement, const GenerateRequest& request,
                            const std::vector<int32_t>& answer, const GenerateResult&) {
      replay_->offer(placement, request, answer);
      std::this_thread::sleep_for(stays_after_offer_);
    };
    auto made = Dispatcher::make(config, std::move(parts));
    ASSERT_TRUE(made.ok()) << made.status();
    dispatcher_ = *std::move(made);
    with.dispatcher = dispatcher_.get();
    replay_->start(std::move(with));
  }
  ~ReplayTest() override { replay_->stop(); }

  static std::shared_ptr<Stack> load(const Params& params) {
    StackSpec spec;
    spec.plugin_directories = {VARVE_PLUGIN_DIRECTORY};
    spec.plugins = {{"runtime", "fake", params}};
    auto stack = load_stack(spec);
    EXPECT_TRUE(stack.ok()) << stack.status();
    return std::shared_ptr<Stack>(*std::move(stack));
  }

  void ask(const std::string& id, const std::string& prompt, uint64_t n_tokens) {
    Arrival arrival;
    arrival.who = {"anonymous", "anonymous", "standard", {}, Scope::kInference};
    arrival.conversation = id;
    GenerateRequest request;
    request.id = id;
    request.prompt = bytes(prompt);
    request.max_tokens = n_tokens;
    const auto placement = dispatcher_->place(arrival);
    ASSERT_TRUE(placement.ok()) << placement.status();
    auto sink = std::make_shared<test::Recorder>();
    const absl::Status status =
        dispatcher_->submit(arrival, *placement, std::move(request), sink, nullptr);
    ASSERT_TRUE(status.ok()) << status;
    sink->wait();
  }
  // The hook runs after the sink was told.
  void wait_for(uint64_t n_offered) {
    while (replay_->counts().offered < n_offered) std::this_thread::yield();
    replay_->wait();
  }
  std::vector<Exposure> shadow_rows() {
    std::vector<Exposure> rows = logged_.all_rows();
    std::erase_if(rows, [](const Exposure& row) { return !row.is_shadow; });
    return rows;
  }
  std::vector<QualitySample> samples() {
    MutexLock lock(&logged_.mutex);
    return logged_.samples;
  }

  Turnstile turnstile_;
  Logged logged_;
  FakeMetrics metrics_;
  std::shared_ptr<Replay> replay_ = Replay::make();
  std::chrono::milliseconds stays_after_offer_{0};  // the request still holds its lane's place
  std::unique_ptr<Dispatcher> dispatcher_;
};

TEST_F(ReplayTest, PlaysAControlsRequestOnTheArmAndComparesTheText) {
  start(100);
  ask("request-1", "round and ", 20);
  wait_for(1);
  ASSERT_EQ(shadow_rows().size(), 1u);
  const Exposure row = shadow_rows().front();
  EXPECT_EQ(row.arm, "lossy");
  EXPECT_EQ(row.request_id, "request-1");
  EXPECT_EQ(row.stack_digest, "digest");
  EXPECT_EQ(row.output_tokens, 20u);
  ASSERT_EQ(samples().size(), 1u);
  const QualitySample sample = samples().front();
  EXPECT_EQ(sample.arm, "lossy");
  EXPECT_EQ(sample.tokens, 20u);
  EXPECT_EQ(sample.depth_tokens, 10u);
  EXPECT_NEAR(sample.top1_agreement, 1, 1e-9);
  EXPECT_EQ(sample.mean_kld, 0);
  EXPECT_NE(sample.unit_hash, 0u);
  EXPECT_EQ(sample.unit_hash, row.unit_hash);
  const auto counts = replay_->counts();
  EXPECT_EQ(counts.shadowed, 1u);
  EXPECT_EQ(counts.compared, 1u);
  EXPECT_TRUE(metrics_.records().back().is_shadow);
}

TEST_F(ReplayTest, ComparesAtMost256Tokens) {
  start(100);
  ask("long", "abc", 400);
  wait_for(1);
  ASSERT_EQ(samples().size(), 1u);
  EXPECT_EQ(samples().front().tokens, 256u);
}

TEST_F(ReplayTest, KeepsTheShareThatIsAskedFor) {
  start(25);
  for (int i = 0; i < 200; ++i) {
    ask(absl::StrCat("request-", i), "ab", 1);
    wait_for(static_cast<uint64_t>(i) + 1);
  }
  const auto counts = replay_->counts();
  EXPECT_EQ(counts.offered, 200u);
  EXPECT_GT(counts.kept, 25u);
  EXPECT_LT(counts.kept, 80u);
  EXPECT_EQ(counts.dropped, 0u);
  EXPECT_EQ(counts.shadowed + counts.busy, counts.kept);
}

TEST_F(ReplayTest, DropsWhatComesFasterThanItCanPlay) {
  start(100, {{"delay_ms", int64_t{20}}});
  Placement placement;
  placement.experiment = "memory";
  placement.experiment_version = 1;
  GenerateRequest request;
  request.prompt = bytes("ab");
  request.max_tokens = 4;
  for (int i = 0; i < 60; ++i) {
    request.id = absl::StrCat("request-", i);
    replay_->offer(placement, request, bytes("abab"));
  }
  EXPECT_GT(replay_->counts().dropped, 0u);
  replay_->stop();  // cancels the rest at once
  const auto counts = replay_->counts();
  EXPECT_EQ(counts.kept + counts.dropped, 60u);
  EXPECT_LT(counts.shadowed, counts.kept);
}

TEST_F(ReplayTest, WaitsForThePlaceOfTheRequestItself) {
  stays_after_offer_ = std::chrono::milliseconds(100);
  start(100, {}, 1);
  ask("request-1", "ab", 2);
  wait_for(1);
  EXPECT_EQ(replay_->counts().busy, 0u);
  EXPECT_EQ(replay_->counts().shadowed, 1u);
  EXPECT_EQ(replay_->counts().compared, 1u);
}

TEST_F(ReplayTest, AComparisonGivesWayToClients) {
  start(100, {{"delay_ms", int64_t{30}}, {"trained_tokens", int64_t{100000}}}, 1);
  ask("request-1", "round and ", 100);
  while (replay_->counts().shadowed == 0) std::this_thread::yield();
  // The comparison has three seconds to go when this comes.
  GenerateRequest live;
  live.prompt = bytes("live");
  live.max_tokens = 90000;
  auto sink = std::make_shared<test::Recorder>();
  const auto cancel = std::make_shared<std::atomic<uint32_t>>(0);
  for (const LaneInfo& info : dispatcher_->lanes()) {
    if (info.stack != "lossy") continue;
    ASSERT_TRUE(info.lane->submit(std::move(live), sink, cancel).ok());
  }
  replay_->wait();
  EXPECT_EQ(replay_->counts().busy, 1u);
  EXPECT_EQ(replay_->counts().compared, 0u);
  EXPECT_TRUE(samples().empty());
  *cancel = 1;
  sink->wait();
}

TEST_F(ReplayTest, AStoppedArmGetsNothingMore) {
  start(100);
  ASSERT_TRUE(dispatcher_->stop_arm("memory", "lossy", "test").ok());
  ask("request-1", "ab", 2);
  wait_for(1);
  ask("request-2", "ab", 2);
  wait_for(2);
  EXPECT_TRUE(shadow_rows().empty());
  EXPECT_TRUE(samples().empty());
}

TEST_F(ReplayTest, NothingIsTakenBeforeAndAfter) {
  replay_->offer({}, {}, {});
  EXPECT_EQ(replay_->counts().offered, 0u);
  start(100);
  replay_->stop();
  ask("request-1", "ab", 2);
  EXPECT_EQ(replay_->counts().offered, 0u);
  replay_->stop();
}

int32_t likeliest(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TEST_F(ReplayTest, ReadsTheTextThatTheRuntimeWouldWrite) {
  const std::shared_ptr<Stack> stack = load({});
  const auto info = Text(stack->text().table, stack->text().self).model_info();
  ASSERT_TRUE(info.ok());
  const ForcedText::Where where{stack->runtime(), info->vocab_size, &turnstile_, nullptr};
  const std::string prompt = test::repeated("abcde", 700);  // several pieces
  const auto text = ForcedText::read(where, bytes(prompt), 3);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(likeliest((*text)->logits()), 'a');
  ASSERT_TRUE((*text)->append('a').ok());
  EXPECT_EQ(likeliest((*text)->logits()), 'b');
  EXPECT_TRUE((*text)->append('b').ok());
  EXPECT_TRUE((*text)->append('c').ok());
  EXPECT_FALSE((*text)->append('d').ok());  // more than was said
}

TEST_F(ReplayTest, ATextAsksBeforeEachStep) {
  const std::shared_ptr<Stack> stack = load({});
  int n_steps = 0;
  const auto may_go_on = [&] {
    return ++n_steps > 3 ? absl::UnavailableError("busy") : absl::OkStatus();
  };
  const auto text =
      ForcedText::read({stack->runtime(), 258, &turnstile_, nullptr, may_go_on}, bytes("ab"), 9);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_TRUE((*text)->append('a').ok());
  EXPECT_TRUE((*text)->append('b').ok());
  EXPECT_EQ((*text)->append('a').code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(n_steps, 4);
}

TEST_F(ReplayTest, ACancelledTextSaysSo) {
  const std::shared_ptr<Stack> stack = load({});
  std::atomic<uint32_t> cancel{1};
  const auto text = ForcedText::read({stack->runtime(), 260, &turnstile_, &cancel}, bytes("ab"), 1);
  EXPECT_EQ(text.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(ForcedText::read({stack->runtime(), 260, &turnstile_, nullptr}, {}, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace varve
