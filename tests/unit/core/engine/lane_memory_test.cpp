// Prefixes that are shared, and memory that is short.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/core/engine/lane_fixture.h"

namespace varve::test {
namespace {

using testing::HasSubstr;

Value number(int64_t n) { return Value(n); }

using LaneMemoryTest = LaneFixture;

TEST_F(LaneMemoryTest, ReusesWhatTheTenantHasRead) {
  start({});
  const std::string document(1000, 'd');
  EXPECT_EQ(submit(request(document + " first", 5))->wait().cached_tokens, 0u);
  const auto second = submit(request(document + " second", 5));
  EXPECT_EQ(second->wait().cached_tokens, 992u);
  EXPECT_EQ(second->text(), "ddddd");
  GenerateRequest other = request(document + " third", 5);
  other.tenant = "another tenant";
  EXPECT_EQ(submit(other)->wait().cached_tokens, 0u);
  other.keeps_prefix = false;
  EXPECT_EQ(submit(other)->wait().cached_tokens, 0u);
  EXPECT_EQ(memory().contexts, 0u);
}

TEST_F(LaneMemoryTest, NeverReusesTheWholePrompt) {
  start({});
  const std::string document(64, 'd');
  submit(request(document, 1))->wait();
  const auto again = submit(request(document, 3));
  EXPECT_EQ(again->wait().cached_tokens, 32u);
  EXPECT_EQ(again->text(), "ddd");
}

TEST_F(LaneMemoryTest, ReusesAnswersToo) {
  start({});
  const std::string prompt = "abcdefgh";
  submit(request(prompt, 100))->wait();
  const std::string turn = prompt + repeated(prompt, 100) + "and then?";
  const auto next = submit(request(turn, 5));
  EXPECT_EQ(next->wait().cached_tokens, 96u) << "107 tokens were read";
  EXPECT_EQ(next->text(), turn.substr(0, 5));
}

TEST_F(LaneMemoryTest, ChoicesOfOneRequestReadItsPromptOnce) {
  start({}, {{"token_us", number(20)}});
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (int i = 0; i < 6; ++i) sinks.push_back(submit(request(std::string(3000, 'q'), 10)));
  uint64_t n_read = 0;
  for (const auto& sink : sinks) {
    n_read += sink->wait().prompt_tokens - sink->wait().cached_tokens;
    EXPECT_EQ(sink->text(), "qqqqqqqqqq");
  }
  EXPECT_EQ(n_read, 3000u + 5 * (3000 - 2976));
}

TEST_F(LaneMemoryTest, PinnedPrefixesStayUntilForgotten) {
  start({}, {{"kv_bytes_max", number(64 * 600)}});
  GenerateRequest context = request(std::string(320, 'p'), 0);
  context.pins_prefix = true;
  submit(context)->wait();
  // 300 tokens at a time: everything else goes.
  for (char c = 'a'; c < 'e'; ++c)
    EXPECT_TRUE(submit(request(std::string(270, c), 4))->wait().status.ok());
  EXPECT_EQ(submit(request(std::string(320, 'p') + "?", 1))->wait().cached_tokens, 320u);
  EXPECT_TRUE(lane_->forget_prefix("tenant", context.prompt).ok());
  const auto large = submit(request(std::string(590, 'l'), 4));
  EXPECT_TRUE(large->wait().status.ok()) << large->wait().status;
  EXPECT_FALSE(lane_->forget_prefix("tenant", {1, 2, 3}).ok()) << "less than a block";
}

TEST_F(LaneMemoryTest, KeptPrefixesGoBeforeAnybodyIsRefused) {
  start({}, {{"kv_bytes_max", number(64 * 900)}, {"hot_tokens", number(100000)}});
  submit(request(std::string(400, 'a'), 1))->wait();
  EXPECT_EQ(lane_->status().kept_prefix_bytes, 64u * 384);
  EXPECT_EQ(lane_->status().budget_bytes, 64u * 900);
  EXPECT_TRUE(submit(request(std::string(850, 'b'), 4))->wait().status.ok());
}

TEST_F(LaneMemoryTest, AnUrgentRequestTakesAStandardOnesMemory) {
  // Room for 600 tokens in hot; a shrunk one takes half.
  start({}, {{"kv_bytes_max", number(64 * 600)},
             {"hot_tokens", number(100000)},
             {"delay_ms", number(1)}});
  const auto standard = submit(request("standard " + std::string(391, 's'), 150));
  standard->wait_for_pieces(20);
  GenerateRequest vip = request(std::string(450, 'v'), 20);
  vip.priority = 10;
  const auto urgent = submit(vip);
  EXPECT_TRUE(urgent->wait().status.ok()) << urgent->wait().status;
  EXPECT_EQ(urgent->text(), std::string(20, 'v'));
  EXPECT_EQ(urgent->wait().demotions, 0u);
  EXPECT_TRUE(standard->wait().status.ok()) << standard->wait().status;
  EXPECT_GE(standard->wait().demotions, 1u);
  EXPECT_EQ(standard->text(), ("standard " + std::string(391, 's')).substr(0, 150))
      << "goes on where it was";
  EXPECT_EQ(standard->wait().output_tokens, 150u);
  EXPECT_GE(lane_->status().demotions, 1u);
  EXPECT_EQ(memory().contexts, 0u);
}

TEST_F(LaneMemoryTest, EqualsTakeTurnsWhenTheyDoNotFitTogether) {
  LaneOptions options;
  options.concurrency = 8;
  // Without a batching plugin nobody looks at memory before a request starts.
  start(options, {{"kv_bytes_max", number(64 * 500)}, {"hot_tokens", number(100000)}}, "");
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (char c = 'a'; c < 'i'; ++c) sinks.push_back(submit(request(std::string(200, c), 100)));
  for (size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_TRUE(sinks[i]->wait().status.ok()) << sinks[i]->wait().status;
    EXPECT_EQ(sinks[i]->text(), std::string(100, static_cast<char>('a' + i)));
  }
  EXPECT_EQ(memory().contexts, 0u);
}

TEST_F(LaneMemoryTest, WhatNeverFitsIsTheClientsMistake) {
  LaneOptions options;
  options.step_tokens_max = 50;
  start(options, {{"kv_bytes_max", number(64 * 100)}, {"hot_tokens", number(100000)}});
  submit(request(std::string(64, 'k'), 1))->wait();  // a kept prefix is in nobody's way
  const auto sink = submit(request(std::string(500, 'x'), 4));
  EXPECT_EQ(sink->wait().reason, FinishReason::kError);
  EXPECT_TRUE(absl::IsOutOfRange(sink->wait().status)) << sink->wait().status;
  EXPECT_THAT(sink->wait().status.message(), HasSubstr("a prompt of 500 tokens"));
  EXPECT_THAT(sink->wait().status.message(), HasSubstr("6400 bytes"));
  EXPECT_TRUE(submit(request("small", 4))->wait().status.ok());
  EXPECT_EQ(memory().contexts, 0u);
}

TEST_F(LaneMemoryTest, WhatDoesNotFitBesideOthersMayComeAgain) {
  LaneOptions options;
  options.step_tokens_max = 50;
  start(options, {{"kv_bytes_max", number(64 * 1000)}, {"hot_tokens", number(100000)}});
  GenerateRequest context = request(std::string(480, 'p'), 0);
  context.pins_prefix = true;
  submit(context)->wait();
  const GenerateRequest large = request(std::string(1060, 'l'), 4);
  const auto sink = submit(large);
  EXPECT_TRUE(absl::IsResourceExhausted(sink->wait().status)) << sink->wait().status;
  EXPECT_THAT(sink->wait().status.message(), HasSubstr("held by others"));
  EXPECT_TRUE(lane_->forget_prefix("tenant", context.prompt).ok());
  EXPECT_TRUE(submit(large)->wait().status.ok());
}

// Told as far as it came: nobody can do more with this prompt.
TEST_F(LaneMemoryTest, AnAnswerThatFillsTheMemoryEndsByLength) {
  start({}, {{"kv_bytes_max", number(64 * 100)}, {"hot_tokens", number(100000)}});
  GenerateRequest r = request("abcdefgh", 500);
  r.stop = {"habX"};  // the end of the text is held back at times
  const auto sink = submit(r);
  EXPECT_EQ(sink->wait().reason, FinishReason::kLength) << sink->wait().status;
  EXPECT_GE(sink->wait().output_tokens, 90u);
  EXPECT_EQ(sink->text(), repeated("abcdefgh", sink->wait().output_tokens)) << "none is held back";
  EXPECT_EQ(memory().contexts, 0u);
}

}  // namespace
}  // namespace varve::test
