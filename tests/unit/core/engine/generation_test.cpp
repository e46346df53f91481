#include "core/engine/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/engine/lane_pace.h"
#include "core/engine/prefix_keys.h"
#include "mri/entry.h"

extern "C" const mri_plugin_entry mri_plugin_entry_v1;  // of the fake runtime

namespace varve {
namespace {

using testing::ElementsAre;

constexpr int32_t kEnd = 257;  // of the fake runtime's vocabulary of 258

// Draws what a test says, or the likeliest.
class Scripted final : public Sampler {
 public:
  explicit Scripted(std::vector<int32_t> tokens) : tokens_(std::move(tokens)) {}
  absl::StatusOr<int32_t> sample(std::span<const float> logits) override {
    if (tokens_.empty()) return absl::OutOfRangeError("the grammar is complete");
    int32_t token = tokens_.front();
    if (std::isinf(logits[static_cast<size_t>(token)])) token = '!';  // ruled out
    tokens_.erase(tokens_.begin());
    return token;
  }
  absl::Status accept(std::span<const int32_t>) override { return absl::OkStatus(); }

 private:
  std::vector<int32_t> tokens_;
};

class GenerationTest : public testing::Test {
 protected:
  GenerationTest() {
    host_.struct_size = sizeof(host_);
    host_.get_interface = [](const mri_host*, const char*) -> const void* { return nullptr; };
    EXPECT_EQ(mri_plugin_entry_v1.open(&host_, MRI_1_1, &plugin_, nullptr), MRI_OK);
    EXPECT_EQ(plugin_->activate(plugin_->self, nullptr, 0, nullptr), MRI_OK);
    text_ = std::make_unique<Text>(
        static_cast<const mri_text_v1*>(plugin_->get_interface(plugin_->self, MRI_TEXT)),
        plugin_->self);
  }
  ~GenerationTest() override { plugin_->close(plugin_->self); }

  struct Told {
    std::vector<std::string> pieces;
    std::string text, stop;
    FinishReason reason = FinishReason::kError;
    uint64_t n_tokens = 0;
  };
  Told run(const std::string& script, GenerationLimits limits, int end_after = -1) {
    std::vector<int32_t> tokens;
    for (const char c : script) tokens.push_back(static_cast<unsigned char>(c));
    if (end_after >= 0) tokens.insert(tokens.begin() + end_after, kEnd);
    if (limits.max_tokens == 0) limits.max_tokens = 1000;
    Generation generation(limits, std::make_unique<Scripted>(tokens), text_.get(), &end_tokens_);
    Told told;
    while (true) {
      std::vector<float> logits(258, 0.0f);
      auto next = generation.next(logits);
      EXPECT_TRUE(next.ok()) << next.status();
      if (next->piece.has_value()) {
        told.pieces.push_back(next->piece->text);
        told.text += next->piece->text;
      }
      EXPECT_NE(next->token.has_value(), next->end.has_value());
      if (!next->end.has_value()) continue;
      told.reason = *next->end;
      told.stop = next->stop;
      told.n_tokens = generation.n_tokens();
      return told;
    }
  }

  mri_host host_{};
  mri_plugin* plugin_ = nullptr;
  std::unique_ptr<Text> text_;
  const std::vector<int32_t> end_tokens_ = {kEnd};
};

TEST_F(GenerationTest, EndsAtTheLimit) {
  GenerationLimits limits;
  limits.max_tokens = 3;
  const Told told = run("abcdef", limits);
  EXPECT_THAT(told.pieces, ElementsAre("a", "b", "c"));
  EXPECT_EQ(told.reason, FinishReason::kLength);
  EXPECT_EQ(told.n_tokens, 3u);
}

TEST_F(GenerationTest, EndsAtAnEndTokenThatIsNoPiece) {
  const Told told = run("abcdef", {}, 2);
  EXPECT_THAT(told.pieces, ElementsAre("a", "b"));
  EXPECT_EQ(told.reason, FinishReason::kStop);
  EXPECT_EQ(told.n_tokens, 2u);
  EXPECT_EQ(run("ab", {}).reason, FinishReason::kStop) << "the grammar is complete";
}

TEST_F(GenerationTest, IgnoresEndTokensWhenAsked) {
  GenerationLimits limits;
  limits.ignore_end = true;
  limits.max_tokens = 4;
  const Told told = run("abcdef", limits, 2);
  EXPECT_THAT(told.pieces, ElementsAre("a", "b", "", "c"));
  EXPECT_EQ(told.reason, FinishReason::kLength);
}

TEST_F(GenerationTest, RulesEndTokensOutBeforeTheMinimum) {
  GenerationLimits limits;
  limits.min_tokens = 3;
  EXPECT_EQ(run("abcdef", limits, 2).text, "ab!cdef");
  EXPECT_EQ(run("abcdef", limits, 3).text, "abc");
}

TEST_F(GenerationTest, HoldsBackWhatMayBeAStop) {
  GenerationLimits limits;
  limits.stop = {"STOP", "\n\n"};
  Told told = run("aSTxSTOPb", limits);
  EXPECT_THAT(told.pieces, ElementsAre("a", "", "", "STx", "", "", "", ""));
  EXPECT_EQ(told.stop, "STOP");
  EXPECT_EQ(told.n_tokens, 8u);
  EXPECT_EQ(told.reason, FinishReason::kStop);
  told = run("a\nb\n\nc", limits);
  EXPECT_EQ(told.text, "a\nb");
  EXPECT_EQ(told.stop, "\n\n");
}

TEST_F(GenerationTest, TellsWhatWasHeldBackAtTheEnd) {
  GenerationLimits limits;
  limits.stop = {"STOP"};
  limits.max_tokens = 4;
  EXPECT_EQ(run("abSTOP", limits).text, "abST");
  limits.max_tokens = 100;
  const Told told = run("abST", limits, 4);
  EXPECT_EQ(told.text, "abST");
  EXPECT_EQ(told.n_tokens, 4u);
}

TEST_F(GenerationTest, TheEarliestStopWins) {
  GenerationLimits limits;
  limits.stop = {"cd", "bcde", "", "b"};
  EXPECT_EQ(run("abcdef", limits).text, "a");
  limits.stop = {"defg", "e"};
  const Told told = run("abcdefgh", limits);
  EXPECT_EQ(told.text, "abcd");
  EXPECT_EQ(told.stop, "e") << "complete first";
}

TEST_F(GenerationTest, NoStopBeforeTheMinimum) {
  GenerationLimits limits;
  limits.stop = {"b"};
  limits.min_tokens = 3;
  EXPECT_EQ(run("abcdbe", limits).text, "abcd");
}

TEST_F(GenerationTest, PiecesAreWholeCharacters) {
  EXPECT_THAT(run("a€b", {}).pieces, ElementsAre("a", "", "", "€", "b"));
  GenerationLimits limits;
  limits.stop = {"é"};
  EXPECT_EQ(run("xèéy", limits).text, "xè") << "é and è begin with the same byte";
}

TEST_F(GenerationTest, AllSplitsAreTheSameText) {
  const std::string text = "The €nd is STOPPED by ST, not by SSTO. \xF0\x9F\x98\x80!";
  StopFilter whole({"STOPX", "zzz"});
  std::string expected = whole.add(text, true).text;
  expected += whole.rest();
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    StopFilter filter({"STOPX", "zzz"});
    std::string told = filter.add(text.substr(0, cut), true).text;
    told += filter.add(text.substr(cut), true).text;
    told += filter.rest();
    EXPECT_EQ(told, expected);
  }
  EXPECT_EQ(expected, text);
}

TEST_F(GenerationTest, LogprobsAreTheModelsOwn) {
  std::vector<float> logits = {1, 3, 2, 3, NAN, -INFINITY};
  const TokenLogprob out = token_logprob(logits, 2, 4);
  const double norm = std::log(std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0));
  EXPECT_NEAR(out.logprob, 2 - norm, 1e-5);
  ASSERT_EQ(out.top.size(), 4u);
  EXPECT_EQ(out.top[0].first, 1);
  EXPECT_EQ(out.top[1].first, 3);
  EXPECT_EQ(out.top[2].first, 2);
  EXPECT_EQ(out.top[3].first, 0);
  EXPECT_NEAR(out.top[0].second, 3 - norm, 1e-5);
  EXPECT_EQ(token_logprob(logits, 4, 0).logprob, -INFINITY);
  EXPECT_EQ(token_logprob(logits, 0, 100).top.size(), 6u);

  GenerationLimits limits;
  limits.max_tokens = 1;
  limits.min_tokens = 1;
  limits.n_logprobs = 1;
  Generation generation(limits, std::make_unique<Scripted>(std::vector<int32_t>{'a'}), text_.get(),
                        &end_tokens_);
  std::vector<float> all(258, 0.0f);
  all[kEnd] = 10;  // ruled out for drawing, but part of the distribution
  const auto next = generation.next(all);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next->piece->logprobs.at(0).top.at(0).first, kEnd);
}

TEST(PrefixKeys, DependOnEverythingThatDecides) {
  std::vector<int32_t> tokens(100);
  std::iota(tokens.begin(), tokens.end(), 0);
  PrefixKeys chain("model", "tenant");
  EXPECT_EQ(chain.extend(std::span(tokens).first(63)).size(), 1u);
  const std::vector<mri_prefix_key> keys(chain.extend(tokens).begin(), chain.extend(tokens).end());
  ASSERT_EQ(keys.size(), 3u);
  const auto common = [&](const std::string& digest, const std::string& tenant,
                          const std::vector<int32_t>& other) {
    PrefixKeys chain2(digest, tenant);
    return n_common(keys, chain2.extend(other));
  };
  EXPECT_EQ(common("model", "tenant", tokens), 3u);
  EXPECT_EQ(common("model", "tenant2", tokens), 0u);
  EXPECT_EQ(common("modelt", "enant", tokens), 0u) << "lengths count";
  std::vector<int32_t> other = tokens;
  other[64] = -1;
  EXPECT_EQ(common("model", "tenant", other), 2u);
  other[0] = 99;
  EXPECT_EQ(common("model", "tenant", other), 0u);
  EXPECT_EQ(common("model", "tenant", {tokens.begin(), tokens.begin() + 32}), 1u);
}

TEST(LanePace, GrantsWhatTheStallAllows) {
  LanePace pace({3.0, 1000});
  EXPECT_EQ(pace.grant(4, true), 0u) << "first a step without prompts";
  pace.measured(4, 0, 10);
  EXPECT_EQ(pace.grant(4, true), LanePace::kPieceTokensMin) << "cost not known";
  for (int i = 0; i < 50; ++i) pace.measured(4, 64, 10 + 64 * 0.1);
  EXPECT_EQ(pace.grant(4, true), 128u) << "20 ms are worth 200 tokens; at most twice the last";
  for (int i = 0; i < 8; ++i) pace.measured(4, 128, 10 + 128 * 0.1);
  EXPECT_EQ(pace.grant(4, true), 200u) << "what 20 ms are worth";
  EXPECT_EQ(pace.grant(4, false), 256u) << "a second is worth more, but growth is slow";
  pace.set_limits({3.0, 15});
  EXPECT_EQ(pace.grant(4, true), 48u) << "5 ms are left of the step";
  pace.set_limits({1.0, 1000});
  EXPECT_EQ(pace.grant(4, true), LanePace::kPieceTokensMin) << "prompts never starve";
  for (int i = 0; i < 10; ++i) pace.measured(4, 16, 11.6);
  EXPECT_EQ(pace.grant(4, true), 0u) << "after many steps with prompts, measure again";
}

}  // namespace
}  // namespace varve
