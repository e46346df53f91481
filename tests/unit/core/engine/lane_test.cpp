#include "core/engine/lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "tests/unit/core/engine/lane_fixture.h"

namespace varve::test {
namespace {

using testing::HasSubstr;

Value number(int64_t n) { return Value(n); }

class LaneTest : public LaneFixture {
 protected:
  // The runtime's record of this many ms per step, to look at afterwards.
  std::string record_path_ = testing::TempDir() + "lane_record_" + std::to_string(getpid());
  ~LaneTest() override { std::remove(record_path_.c_str()); }

  // Prompt and answer tokens of each step, in order.
  std::vector<std::pair<uint64_t, uint64_t>> steps() const {
    std::vector<std::pair<uint64_t, uint64_t>> found;
    std::ifstream in(record_path_);
    for (std::string line; std::getline(in, line);) {
      uint64_t sequences = 0, tokens = 0;
      if (std::sscanf(line.c_str(), "forward_step sequences=%lu tokens=%lu", &sequences, &tokens) ==
          2) {
        found.emplace_back(sequences, tokens);
      }
    }
    return found;
  }
};

TEST_F(LaneTest, AnswersAndTellsAllThereIsToTell) {
  start({});
  GenerateRequest r = request("hello world ", 20);
  r.n_logprobs = 2;
  const auto sink = submit(r);
  const GenerateResult result = sink->wait();
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.reason, FinishReason::kLength);
  EXPECT_EQ(sink->text(), "hello world hello wo");
  EXPECT_EQ(result.prompt_tokens, 12u);
  EXPECT_EQ(result.output_tokens, 20u);
  EXPECT_EQ(result.token_gaps_ms.size(), 19u);
  EXPECT_LE(result.arrived, result.started);
  EXPECT_LE(result.started, result.first_token);
  EXPECT_LE(result.first_token, result.ended);
  EXPECT_EQ(result.usage.bf16_bytes, 64u * 31) << "the last token is never read";
  ASSERT_EQ(sink->logprobs.size(), 20u);
  EXPECT_EQ(sink->logprobs[0].token, 'h');
  EXPECT_EQ(sink->logprobs[0].top.size(), 2u);
  EXPECT_GE(sink->n_progress, 1u);
  lane_.reset();
  EXPECT_EQ(memory().contexts, 0u);
}

TEST_F(LaneTest, StopsAtEndTokensAndStopTexts) {
  start({});
  GenerateRequest chat = request("", 100);
  const Text text(stack_->text().table, stack_->text().self);
  chat.prompt = *chat_tokens(text, {{"user", "What is it?"}});
  const auto end = submit(chat);
  chat.stop = {"is"};
  const auto stop = submit(chat);
  chat.ignore_end = true;
  chat.stop = {};
  chat.max_tokens = 14;
  const auto length = submit(chat);
  EXPECT_EQ(end->wait().reason, FinishReason::kStop);
  EXPECT_EQ(end->text(), "What is it?");
  EXPECT_EQ(stop->wait().stop, "is");
  EXPECT_EQ(stop->text(), "What ");
  EXPECT_EQ(length->wait().reason, FinishReason::kLength);
  EXPECT_EQ(length->wait().output_tokens, 14u);
}

TEST_F(LaneTest, ReadsOnly) {
  start({});
  const auto sink = submit(request("only read this, please", 0));
  EXPECT_EQ(sink->wait().reason, FinishReason::kLength);
  EXPECT_TRUE(sink->wait().status.ok());
  EXPECT_EQ(sink->n_pieces(), 0u);
}

TEST_F(LaneTest, TellsLogprobsOfThePrompt) {
  start({});
  GenerateRequest r = request(std::string(1000, 'x'), 1);
  r.n_prompt_logprobs = 3;
  const auto sink = submit(r);
  EXPECT_TRUE(sink->wait().status.ok());
  ASSERT_EQ(sink->prompt_logprobs.size(), 999u);
  for (const TokenLogprob& logprob : sink->prompt_logprobs) {
    ASSERT_EQ(logprob.token, 'x');
    ASSERT_EQ(logprob.top.size(), 3u);
    ASSERT_LT(logprob.logprob, 0);
  }
  r.max_tokens = 0;
  const auto again = submit(r);
  EXPECT_EQ(again->wait().cached_tokens, 0u) << "logits of all tokens are needed";
  EXPECT_EQ(again->prompt_logprobs.size(), 999u);
}

TEST_F(LaneTest, RefusesWhatCanNeverRun) {
  start({}, {{"trained_tokens", number(100)}});
  EXPECT_TRUE(absl::IsInvalidArgument(refused(request(""))));
  GenerateRequest r = request("abc");
  r.prompt[1] = 999;
  EXPECT_THAT(std::string(refused(r).message()), HasSubstr("found token 999"));
  r.prompt[1] = -1;
  EXPECT_TRUE(absl::IsInvalidArgument(refused(r)));
  EXPECT_THAT(std::string(refused(request(std::string(100, 'x'))).message()),
              HasSubstr("found a prompt of 100 tokens; expected at most 99"));
  r = request("abc");
  r.sampling.grammar = "root ::= \"a\"";
  EXPECT_TRUE(absl::IsUnimplemented(refused(r)));
  const auto longest = submit(request(std::string(99, 'x'), 10));
  EXPECT_EQ(longest->wait().reason, FinishReason::kLength) << longest->wait().status;
  EXPECT_EQ(longest->wait().output_tokens, 1u);
}

TEST_F(LaneTest, RefusesAtOnceWhenFull) {
  LaneOptions options;
  options.concurrency = options.concurrency_max = 1;
  options.queue_max = 2;
  start(options, {{"delay_ms", number(1)}, {"trained_tokens", number(100000)}});
  const CancelFlag cancel = flag();
  std::vector<std::shared_ptr<Recorder>> sinks = {submit(request("endless", 90000), cancel)};
  sinks[0]->wait_for_pieces(1);
  sinks.push_back(submit(request("waits", 1), cancel));
  sinks.push_back(submit(request("waits too", 1), cancel));
  const absl::Status full = refused(request("too much", 1));
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_GE(lane_->retry_after(), absl::Seconds(1));
  GenerateRequest shadow = request("replay", 1);
  shadow.is_shadow = true;
  EXPECT_TRUE(absl::IsResourceExhausted(refused(shadow)));
  EXPECT_EQ(lane_->status().waiting, 2u);
  EXPECT_EQ(lane_->status().running, 1u);
  EXPECT_GT(lane_->status().oldest_wait, absl::ZeroDuration());
  *cancel = 1;
  for (const auto& sink : sinks) EXPECT_EQ(sink->wait().reason, FinishReason::kCancelled);
  EXPECT_TRUE(absl::IsCancelled(sinks[0]->wait().status));
  EXPECT_EQ(memory().contexts, 0u);
}

TEST_F(LaneTest, CancelsInTheMiddleOfAPromptAndOfAStep) {
  LaneOptions options;
  options.step_ms_max = 60000;
  start(options, {{"delay_ms", number(60000)}, {"trained_tokens", number(100000)}});
  const CancelFlag cancel = flag();
  const auto sink = submit(request(std::string(5000, 'x')), cancel);
  while (lane_->status().waiting > 0) std::this_thread::yield();
  *cancel = 1;
  EXPECT_EQ(sink->wait().reason, FinishReason::kCancelled);
}

TEST_F(LaneTest, OneCancelDoesNotStopTheOthers) {
  start({}, {{"delay_ms", number(1)}});
  const CancelFlag cancel = flag();
  const auto gone = submit(request("gone", 3000), cancel);
  const auto stays = submit(request("stays ", 60));
  gone->wait_for_pieces(3);
  *cancel = 1;
  EXPECT_EQ(gone->wait().reason, FinishReason::kCancelled);
  EXPECT_EQ(stays->wait().reason, FinishReason::kLength);
  EXPECT_EQ(stays->text(), repeated("stays ", 60));
}

TEST_F(LaneTest, EndsWhoIsLate) {
  LaneOptions options;
  options.concurrency = options.concurrency_max = 1;
  start(options, {{"delay_ms", number(1)}, {"trained_tokens", number(100000)}});
  GenerateRequest r = request("slow", 90000);
  r.deadline = absl::Now() + absl::Milliseconds(30);
  const auto running = submit(r);
  running->wait_for_pieces(1);
  r.deadline = absl::Now() - absl::Seconds(1);
  const auto waiting = submit(r);
  EXPECT_TRUE(absl::IsDeadlineExceeded(running->wait().status));
  EXPECT_TRUE(absl::IsDeadlineExceeded(waiting->wait().status));
  EXPECT_EQ(waiting->n_pieces(), 0u);
  EXPECT_EQ(running->wait().reason, FinishReason::kError);
}

TEST_F(LaneTest, OneThatFailsFailsAlone) {
  start({}, {{"delay_ms", number(1)}, {"poison_token", number('!')}});
  const auto good = submit(request("good ", 50));
  const auto bad = submit(request("ba!d", 50));
  const auto late = submit(request("later ", 50));
  EXPECT_EQ(bad->wait().reason, FinishReason::kError);
  EXPECT_TRUE(absl::IsInternal(bad->wait().status)) << bad->wait().status;
  EXPECT_THAT(bad->wait().status.message(), HasSubstr("the poison token"));
  EXPECT_EQ(good->wait().reason, FinishReason::kLength);
  EXPECT_EQ(good->text(), repeated("good ", 50));
  EXPECT_EQ(late->wait().reason, FinishReason::kLength);
  EXPECT_EQ(late->text(), repeated("later ", 50));
  EXPECT_EQ(memory().contexts, 0u);
}

TEST_F(LaneTest, AnUrgentRequestOvertakes) {
  LaneOptions options;
  options.concurrency = options.concurrency_max = 1;
  start(options, {{"delay_ms", number(1)}});
  const auto first = submit(request("first", 300));
  first->wait_for_pieces(1);
  std::vector<std::shared_ptr<Recorder>> standard;
  for (int i = 0; i < 3; ++i) standard.push_back(submit(request("standard", 10)));
  GenerateRequest vip = request("vip", 10);
  vip.priority = 100;
  const auto urgent = submit(vip);
  const int order = urgent->order();
  EXPECT_EQ(first->n_ends(), 0) << "an urgent one gets a place of its own";
  EXPECT_LT(order, first->order());
  for (const auto& sink : standard) EXPECT_LT(first->order(), sink->order());
}

TEST_F(LaneTest, UrgentPromptsGoBeforeOthersPrompts) {
  LaneOptions options;
  options.step_ms_max = 5;
  start(options, {{"token_us", number(100)}, {"trained_tokens", number(100000)}});
  std::vector<std::shared_ptr<Recorder>> standard;
  for (int i = 0; i < 3; ++i) {
    GenerateRequest r = request(std::string(3000, static_cast<char>('a' + i)), 1);
    standard.push_back(submit(r));
  }
  while (lane_->status().running == 0) std::this_thread::yield();
  GenerateRequest vip = request(std::string(800, 'v'), 3);
  vip.priority = 100;
  const int order = submit(vip)->order();
  for (const auto& sink : standard) EXPECT_LT(order, sink->order());
}

TEST_F(LaneTest, PromptsAreReadInPiecesBesideAnswers) {
  LaneOptions options;
  options.stall_max = 3;
  options.step_tokens_max = 100;
  start(options, {{"delay_ms", number(2)},
                  {"trained_tokens", number(100000)},
                  {"record_path", Value(record_path_)}});
  const CancelFlag cancel = flag();
  const auto answer = submit(request("answer", 90000), cancel);
  answer->wait_for_pieces(10);
  const auto prompt = submit(request(std::string(2000, 'p'), 1));
  EXPECT_TRUE(prompt->wait().status.ok());
  *cancel = 1;
  answer->wait();
  uint64_t n_mixed = 0;
  for (const auto& [sequences, tokens] : steps()) {
    EXPECT_LE(tokens, 100u);
    n_mixed += sequences == 2 ? 1 : 0;
  }
  EXPECT_GE(n_mixed, 20u) << "2,000 tokens, 99 at most at a time, each beside an answer's";
  EXPECT_EQ(prompt->n_progress, n_mixed);
}

TEST_F(LaneTest, AnswersDoNotDependOnWhoElseRuns) {
  for (const char* batching : {"", "fcfs", "router"}) {
    LaneOptions options;
    options.concurrency = 12;
    start(options, {}, batching);
    std::vector<std::pair<std::string, std::shared_ptr<Recorder>>> sinks;
    for (int i = 0; i < 30; ++i) {
      const std::string prompt = "prompt " + std::to_string(i * i) + std::string(i * 11, 'z');
      sinks.emplace_back(prompt, submit(request(prompt, 40 + i)));
    }
    for (size_t i = 0; i < sinks.size(); ++i) {
      EXPECT_TRUE(sinks[i].second->wait().status.ok()) << sinks[i].second->wait().status;
      EXPECT_EQ(sinks[i].second->text(), repeated(sinks[i].first, 40 + i)) << batching;
    }
    EXPECT_EQ(lane_->status().step_clips, 0u) << batching;
  }
}

TEST_F(LaneTest, GrowsWithTheQueueAndShrinksAfter) {
  LaneOptions options;
  options.concurrency = 2;
  options.concurrency_max = 5;
  options.queue_max = 10;
  options.peak_queue_percent = 50;
  options.peak_classes = {"standard"};
  start(options, {{"delay_ms", number(1)}});
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (int i = 0; i < 2; ++i) sinks.push_back(submit(request("running", 60)));
  for (const auto& sink : sinks) sink->wait_for_pieces(1);
  for (int i = 0; i < 10; ++i) sinks.push_back(submit(request("waiting", 60)));
  uint32_t most = 0;
  bool was_peak = false;
  for (const auto& sink : sinks) {
    while (sink->n_ends() == 0) {
      const LaneStatus status = lane_->status();
      most = std::max(most, status.running);
      was_peak = was_peak || status.peak;
      std::this_thread::yield();
    }
  }
  EXPECT_GT(most, 2u);
  EXPECT_LE(most, 5u);
  EXPECT_TRUE(was_peak);
  const auto last = submit(request("alone", 60));
  last->wait();
  EXPECT_EQ(lane_->status().concurrency, 2u);
  EXPECT_FALSE(lane_->status().peak);
}

// Whoever watches the lane compares two looks.
TEST_F(LaneTest, ProgressStandsStillWhileNothingIsComputed) {
  start({});
  EXPECT_FALSE(lane_->status().since_progress.has_value());
  submit(request("four steps", 4))->wait();
  while (lane_->status().progress < 4) std::this_thread::yield();
  const LaneStatus first = lane_->status(), second = lane_->status();
  EXPECT_EQ(first.progress, second.progress);
  ASSERT_TRUE(first.since_progress.has_value());
  EXPECT_GE(*second.since_progress, *first.since_progress);
}

TEST_F(LaneTest, DrainsThenAborts) {
  start({}, {{"delay_ms", number(1)}, {"trained_tokens", number(100000)}});
  const auto quick = submit(request("quick", 20));
  lane_->drain(absl::InfiniteFuture());
  EXPECT_EQ(quick->wait().reason, FinishReason::kLength);
  EXPECT_TRUE(absl::IsUnavailable(refused(request("late"))));

  start({}, {{"delay_ms", number(1)}, {"trained_tokens", number(100000)}});
  const auto endless = submit(request("endless", 90000));
  endless->wait_for_pieces(1);
  lane_->drain(absl::Now() + absl::Milliseconds(10));
  EXPECT_EQ(endless->n_ends(), 1);
  EXPECT_TRUE(absl::IsUnavailable(endless->wait().status));
  EXPECT_EQ(memory().contexts, 0u);
}

TEST_F(LaneTest, DestructionAborts) {
  LaneOptions options;
  options.concurrency = options.concurrency_max = 1;
  start(options, {{"delay_ms", number(1)}, {"trained_tokens", number(100000)}});
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (int i = 0; i < 3; ++i) sinks.push_back(submit(request("endless", 90000)));
  sinks[0]->wait_for_pieces(1);
  lane_.reset();
  for (const auto& sink : sinks) EXPECT_TRUE(absl::IsUnavailable(sink->wait().status));
  EXPECT_EQ(memory().contexts, 0u);
}

TEST_F(LaneTest, ReconfiguresWhileItRuns) {
  LaneOptions options;
  options.concurrency = options.concurrency_max = 1;
  options.queue_max = 1;
  start(options, {{"delay_ms", number(1)}, {"trained_tokens", number(100000)}});
  const CancelFlag cancel = flag();
  const auto first = submit(request("a", 90000), cancel);
  first->wait_for_pieces(1);
  const auto second = submit(request("b", 90000), cancel);
  EXPECT_TRUE(absl::IsResourceExhausted(refused(request("c"))));
  options.concurrency = options.concurrency_max = 2;
  options.queue_max = 3;
  lane_->reconfigure(options);
  second->wait_for_pieces(1);
  EXPECT_EQ(lane_->status().queue_max, 3u);
  *cancel = 1;
  first->wait();
  second->wait();
}

// A sink may do anything but block: its own exception is its own loss.
TEST_F(LaneTest, SurvivesASinkThatThrows) {
  struct Thrower : GenerateSink {
    void on_piece(Piece) override { throw std::runtime_error("no"); }
    void on_end(const GenerateResult& result) override {
      failed = result.reason == FinishReason::kError;
      throw std::runtime_error("no again");
    }
    std::atomic<bool> failed{false};
  };
  start({});
  const auto thrower = std::make_shared<Thrower>();
  ASSERT_TRUE(lane_->submit(request("x", 10), thrower, nullptr).ok());
  const auto good = submit(request("good", 10));
  EXPECT_EQ(good->wait().reason, FinishReason::kLength);
  lane_->drain(absl::InfiniteFuture());
  EXPECT_TRUE(thrower->failed);
}

TEST_F(LaneTest, LanesShareAMachine) {
  start({}, {{"delay_ms", number(1)}, {"trained_tokens", number(100000)}});
  const std::shared_ptr<Stack> other_stack = load({{"delay_ms", number(1)}});
  auto other = Lane::start({}, other_stack, &turnstile_);
  ASSERT_TRUE(other.ok());
  const CancelFlag cancel = flag();
  GenerateRequest endless = request("endless", 90000);
  endless.priority = 50;
  const auto urgent = submit(endless, cancel);
  urgent->wait_for_pieces(1);
  const auto sink = std::make_shared<Recorder>();
  ASSERT_TRUE((*other)->submit(request("patient", 20), sink, nullptr).ok());
  EXPECT_EQ(sink->wait().reason, FinishReason::kLength) << "a share goes to who waits longest";
  *cancel = 1;
  urgent->wait();
}

}  // namespace
}  // namespace varve::test
