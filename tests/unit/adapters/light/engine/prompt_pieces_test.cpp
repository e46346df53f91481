// A prompt that arrives in pieces, among others' answers, is read as one that arrives at once.
#include <gtest/gtest.h>

#include "tests/unit/adapters/light/engine/engine_fixture.h"

namespace varve::test {
namespace {

using Tokens = std::vector<int32_t>;

class PromptPiecesTest : public EngineFixture {
 protected:
  static mri_step_seq piece(uint64_t ctx, std::span<const int32_t> tokens, uint32_t flags,
                            float* logits = nullptr) {
    mri_step_seq seq{};
    seq.ctx = ctx;
    seq.tokens = tokens.data();
    seq.n_tokens = tokens.size();
    seq.flags = flags;
    seq.logits = logits;
    return seq;
  }
  static void step(LightStack& stack, std::vector<mri_step_seq> seqs) {
    mri_step_req req{};
    req.hdr.struct_size = sizeof(req);
    req.seqs = seqs.data();
    req.n_seqs = seqs.size();
    mri_step_rsp rsp{};
    rsp.hdr.struct_size = sizeof(rsp);
    mri_error err{};
    err.struct_size = sizeof(err);
    ASSERT_EQ(stack.runtime().table->forward_step(stack.runtime().self, &req, &rsp, &err), MRI_OK)
        << err.msg;
    for (const mri_step_seq& seq : seqs) ASSERT_EQ(seq.status, MRI_OK);
  }
  // Logits after the last of the pieces, the sizes of which are used in turn.
  static std::vector<float> in_pieces(LightStack& stack, const Tokens& tokens,
                                      const std::vector<size_t>& sizes, uint32_t flags,
                                      uint32_t last_flags) {
    uint64_t ctx = 0;
    EXPECT_EQ(stack.init({}, &ctx).status, MRI_OK);
    std::vector<float> logits(kVocab);
    for (size_t done = 0, i = 0; done < tokens.size(); ++i) {
      const size_t n = std::min(sizes[i % sizes.size()], tokens.size() - done);
      const bool last = done + n == tokens.size();
      step(stack, {piece(ctx, std::span(tokens).subspan(done, n), last ? last_flags : flags,
                         last ? logits.data() : nullptr)});
      done += n;
    }
    stack.release(ctx);
    return logits;
  }

  LightStackOptions hybrid() const {
    LightStackOptions options = aged(EngineFixture::options(), 64, 4096);
    options.summary = "clusters";
    options.attention = "hybrid";
    options.attention_params = {{"dense_below_tokens", Value(int64_t{0})},
                                {"dense_prompt_tokens", Value(int64_t{0})},
                                {"top_k_blocks", Value(int64_t{8})},
                                {"window_tokens", Value(int64_t{64})}};
    return options;
  }

  static constexpr uint32_t kMore = MRI_STEP_PROMPT | MRI_STEP_MORE;
};

TEST_F(PromptPiecesTest, OddSizesGiveTheSameLogits) {
  LightStack stack(options());
  const Tokens tokens = random_tokens(700, 1);
  const std::vector<float> whole = last_logits(stack, tokens);
  for (const std::vector<size_t>& sizes :
       {std::vector<size_t>{1, 31, 33, 7}, {64}, {17, 100, 5}, {699, 1}, {700}}) {
    EXPECT_LT(distance(in_pieces(stack, tokens, sizes, kMore, MRI_STEP_PROMPT), whole), 2e-4)
        << sizes[0];
  }
}

TEST_F(PromptPiecesTest, PiecesTellAttentionWhatChunksTell) {
  LightStack stack(hybrid());
  for (const size_t n : {size_t{2048}, size_t{2049}, size_t{2100}}) {  // the last piece: 256, 1, 52
    const Tokens tokens = random_tokens(n, n);
    const std::vector<float> chunks = last_logits(stack, tokens, 256);
    EXPECT_EQ(in_pieces(stack, tokens, {256}, kMore, MRI_STEP_PROMPT), chunks) << n;
    EXPECT_NE(in_pieces(stack, tokens, {256}, MRI_STEP_PROMPT, kMore), chunks)
        << n << ": flags make a difference";
  }
}

TEST_F(PromptPiecesTest, APieceLargerThanAChunkIsCutAsAPromptIs) {
  LightStackOptions exact = hybrid();
  exact.tier = "full";
  exact.tier_params.clear();
  LightStack stack(exact);
  const Tokens tokens = random_tokens(2100, 2);
  EXPECT_EQ(in_pieces(stack, tokens, {1536}, kMore, MRI_STEP_PROMPT),
            last_logits(stack, tokens, 512));
}

TEST_F(PromptPiecesTest, HybridStaysCloseInOddPieces) {
  LightStackOptions wide = hybrid();
  wide.attention_params[2].second = Value(int64_t{64});  // all blocks, pages in int8
  LightStack stack(wide);
  const Tokens tokens = random_tokens(1900, 3);
  const std::vector<float> whole = last_logits(stack, tokens, 512);
  const std::vector<float> pieces =
      in_pieces(stack, tokens, {64, 33, 200, 1}, kMore, MRI_STEP_PROMPT);
  double size = 0;
  for (const float logit : pieces) {
    ASSERT_TRUE(std::isfinite(logit));
    size = std::max(size, std::abs(static_cast<double>(logit)));
  }
  EXPECT_LT(distance(pieces, whole), 0.02 * size);
}

TEST_F(PromptPiecesTest, PiecesAndAnswersShareAStep) {
  LightStack stack(options());
  const Tokens answers = random_tokens(200, 4), prompt = random_tokens(330, 5);
  uint64_t reading = 0, writing = 0;
  ASSERT_EQ(stack.init({}, &reading).status, MRI_OK);
  ASSERT_EQ(stack.init(std::span(answers).first(100), &writing).status, MRI_OK);
  std::vector<float> after_prompt(kVocab), after_answer(kVocab);
  for (size_t i = 0; i < 10; ++i) {
    step(stack, {piece(reading, std::span(prompt).subspan(33 * i, 33),
                       i < 9 ? kMore : MRI_STEP_PROMPT, after_prompt.data()),
                 piece(writing, std::span(answers).subspan(100 + i, 1), 0, after_answer.data())});
  }
  EXPECT_LT(distance(after_prompt, last_logits(stack, prompt)), 2e-4);
  EXPECT_LT(
      distance(after_answer, last_logits(stack, Tokens(answers.begin(), answers.begin() + 110))),
      2e-4);
}

TEST_F(PromptPiecesTest, AStepWithoutSummariesReadsNone) {
  LightStackOptions with = hybrid();
  LightStackOptions without = with;
  without.attention_params.emplace_back("summary_weight", Value(0.0));
  LightStack summarised(with), bare(without);
  const Tokens tokens = random_tokens(3000, 6);
  const int32_t next = 5;
  std::vector<float> logits[3];
  const uint32_t flags[] = {0, MRI_STEP_NO_SUMMARIES, 0};
  for (int i = 0; i < 3; ++i) {
    LightStack& stack = i < 2 ? summarised : bare;
    uint64_t ctx = 0;
    ASSERT_EQ(stack.init({}, &ctx).status, MRI_OK);
    step(stack, {piece(ctx, tokens, MRI_STEP_PROMPT | (flags[i]))});
    logits[i].resize(kVocab);
    step(stack, {piece(ctx, std::span(&next, 1), flags[i], logits[i].data())});
  }
  EXPECT_EQ(logits[1], logits[2]);
  EXPECT_NE(logits[0], logits[2]);
}

}  // namespace
}  // namespace varve::test
