// Steps that fail, and everything at the edges: lengths around a block, formats of third parties,
// recall.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/unit/adapters/light/engine/engine_fixture.h"

namespace varve::test {
namespace {

using testing::HasSubstr;

class EngineStepsTest : public EngineFixture {
 protected:
  static mri_step_seq seq_of(uint64_t ctx, std::span<const int32_t> tokens, float* logits) {
    mri_step_seq seq{};
    seq.ctx = ctx;
    seq.tokens = tokens.data();
    seq.n_tokens = tokens.size();
    seq.logits = logits;
    return seq;
  }

  static mri_status step(LightStack& stack, std::span<mri_step_seq> seqs, mri_step_rsp* out,
                         const uint32_t* cancel = nullptr, std::string* text = nullptr) {
    mri_step_req req{};
    req.hdr.struct_size = sizeof(req);
    req.seqs = seqs.data();
    req.n_seqs = seqs.size();
    req.cancel = cancel;
    *out = {};
    out->hdr.struct_size = sizeof(*out);
    mri_error err{};
    err.struct_size = sizeof(err);
    const mri_status status =
        stack.runtime().table->forward_step(stack.runtime().self, &req, out, &err);
    if (text != nullptr) *text = err.msg;
    return status;
  }
};

TEST_F(EngineStepsTest, LengthsAroundABlock) {
  LightStack stack(options());
  for (const size_t n : {1u, 31u, 32u, 33u, 64u}) {
    const std::vector<int32_t> tokens = random_tokens(n, n);
    uint64_t ctx = 0;
    ASSERT_EQ(stack.init({}, &ctx).status, MRI_OK);
    std::vector<float> logits(kVocab);
    for (const int32_t token : tokens)
      ASSERT_EQ(stack.step(ctx, std::span(&token, 1), logits.data()).status, MRI_OK);
    EXPECT_LT(distance(logits, last_logits(stack, tokens)), 2e-4) << n;
    mri_kv_usage usage{};
    const int32_t token = 1;
    ASSERT_EQ(stack.step(ctx, std::span(&token, 1), nullptr, false, &usage).status, MRI_OK);
    EXPECT_EQ(usage.hot_tokens, n + 1);
    stack.release(ctx);
  }
}

TEST_F(EngineStepsTest, AnEmptyPromptHasNoLogits) {
  LightStack stack(options());
  uint64_t ctx = 0;
  std::vector<float> logits(kVocab);
  const LightStack::Result result = stack.init({}, &ctx, logits.data());
  EXPECT_EQ(result.status, MRI_E_ARG);
  EXPECT_THAT(result.text, HasSubstr("empty prompt"));
}

TEST_F(EngineStepsTest, ASingleSequencesFailureHasText) {
  LightStackOptions small = options();
  small.runtime_params = {{"max_tokens", Value(int64_t{64})}};
  LightStack stack(small);
  uint64_t ctx = 0;
  ASSERT_EQ(stack.init(random_tokens(62), &ctx).status, MRI_OK);
  const std::vector<int32_t> three = random_tokens(3);
  LightStack::Result result = stack.step(ctx, three);
  EXPECT_EQ(result.status, MRI_E_ARG);
  EXPECT_THAT(result.text, HasSubstr("62"));
  EXPECT_THAT(result.text, HasSubstr("64"));
  EXPECT_EQ(stack.step(ctx, std::span(three).first(2)).status, MRI_OK);
  EXPECT_EQ(stack.step(ctx, std::span(three).first(1)).status, MRI_E_ARG);
  result = stack.step(ctx, {});
  EXPECT_EQ(result.status, MRI_E_ARG);
  EXPECT_THAT(result.text, HasSubstr("no tokens"));
}

TEST_F(EngineStepsTest, AFailedBatchIsTriedOneByOne) {
  LightStackOptions flaky = options();
  flaky.attention = "flaky";
  flaky.attention_params = {{"failures", Value(int64_t{2})}};
  LightStack stack(flaky), exact(options());
  const std::vector<int32_t> prompts[] = {random_tokens(40, 1), random_tokens(31, 2)};
  const int32_t next = 9;
  uint64_t contexts[2];
  std::vector<float> logits[2] = {std::vector<float>(kVocab), std::vector<float>(kVocab)};
  mri_step_seq seqs[2];
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(stack.init(prompts[i], &contexts[i]).status, MRI_OK);
    seqs[i] = seq_of(contexts[i], std::span(&next, 1), logits[i].data());
  }
  // The batch fails, then the first alone; the second is well.
  mri_step_rsp rsp{};
  std::string why;
  ASSERT_EQ(step(stack, seqs, &rsp, nullptr, &why), MRI_OK);
  EXPECT_EQ(seqs[0].status, MRI_E_DEVICE);
  EXPECT_NE(why.find("attention"), std::string::npos) << why;
  EXPECT_EQ(seqs[1].status, MRI_OK);
  EXPECT_EQ(rsp.n_tokens, 1u);
  ASSERT_EQ(step(stack, std::span(seqs, 1), &rsp), MRI_OK);
  EXPECT_EQ(seqs[0].position, 40u);
  for (int i = 0; i < 2; ++i) {
    std::vector<int32_t> text = prompts[i];
    text.push_back(next);
    EXPECT_LT(distance(logits[i], last_logits(exact, text)), 2e-4) << i;
  }
}

TEST_F(EngineStepsTest, ACancelledStepAppendsNothing) {
  LightStack stack(options());
  const std::vector<int32_t> prompt = random_tokens(40);
  uint64_t contexts[2];
  mri_step_seq seqs[2];
  const int32_t next = 9;
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(stack.init(prompt, &contexts[i]).status, MRI_OK);
    seqs[i] = seq_of(contexts[i], std::span(&next, 1), nullptr);
  }
  const uint32_t cancel = 1;
  mri_step_rsp rsp{};
  ASSERT_EQ(step(stack, seqs, &rsp, &cancel), MRI_OK);
  EXPECT_EQ(seqs[0].status, MRI_E_CANCELLED);
  EXPECT_EQ(seqs[1].status, MRI_E_CANCELLED);
  EXPECT_EQ(rsp.n_tokens, 0u);
  EXPECT_EQ(step(stack, std::span(seqs, 1), &rsp, &cancel), MRI_E_CANCELLED);
  ASSERT_EQ(step(stack, seqs, &rsp), MRI_OK);
  EXPECT_EQ(seqs[0].position, 40u);
}

TEST_F(EngineStepsTest, ABatchLargerThanAChunkIsSplit) {
  LightStackOptions small = options();
  small.runtime_params = {{"compute", Value(std::string("f32"))},
                          {"prefill_chunk_tokens", Value(int64_t{64})}};
  LightStack stack(small);
  const std::vector<int32_t> tokens = random_tokens(50);
  uint64_t contexts[3];
  mri_step_seq seqs[3];
  std::vector<float> logits[3];
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(stack.init({}, &contexts[i]).status, MRI_OK);
    logits[i].resize(tokens.size() * kVocab);
    seqs[i] = seq_of(contexts[i], tokens, logits[i].data());
    seqs[i].all_logits = 1;
  }
  mri_step_rsp rsp{};
  ASSERT_EQ(step(stack, seqs, &rsp), MRI_OK);
  EXPECT_EQ(rsp.n_tokens, 150u);
  const std::vector<float> last = last_logits(stack, tokens);
  for (int i = 0; i < 3; ++i)
    EXPECT_LT(distance(std::span(logits[i]).last(kVocab), last), 2e-4) << i;
}

TEST_F(EngineStepsTest, ALongStepThatFailsInItsMiddleIsUndone) {
  LightStackOptions flaky = aged(options(), 64, 128);
  flaky.runtime_params.emplace_back("backing", Value(std::string("file")));
  flaky.runtime_params.emplace_back("backing_dir", Value(folder_.path()));
  LightStackOptions plain = flaky;
  flaky.attention = "flaky";
  flaky.attention_params = {{"from_position", Value(int64_t{600})}};
  LightStack stack(flaky), exact(plain);
  const std::vector<int32_t> prompt = random_tokens(100, 1), more = random_tokens(1200, 2);
  uint64_t ctx = 0, other = 0;
  ASSERT_EQ(stack.init(prompt, &ctx).status, MRI_OK);
  const LightStack::Result failed = stack.step(ctx, more);
  EXPECT_EQ(failed.status, MRI_E_DEVICE);
  EXPECT_THAT(failed.text, HasSubstr("flaky"));
  std::vector<float> logits(kVocab), expected(kVocab);
  mri_kv_usage usage{};
  ASSERT_EQ(stack.step(ctx, more, logits.data(), false, &usage).status, MRI_OK);
  EXPECT_EQ(usage.hot_tokens + usage.warm_tokens + usage.cold_tokens, 1300u);
  ASSERT_EQ(exact.init(prompt, &other).status, MRI_OK);
  ASSERT_EQ(exact.step(other, more, expected.data()).status, MRI_OK);
  EXPECT_LT(distance(logits, expected), 0.02);
}

TEST_F(EngineStepsTest, PagesOfAForeignFormatReachTheirQuantizer) {
  LightStackOptions tagged = aged(options(), 64, 256);
  tagged.quantizer = "tagged";
  LightStack stack(tagged), exact(options());
  const std::vector<int32_t> tokens = random_tokens(1200);
  uint64_t ctx = 0;
  mri_init_rsp rsp{};
  std::vector<float> logits(kVocab);
  const LightStack::Result result = stack.init(tokens, &ctx, logits.data(), 0, 0, nullptr, &rsp);
  ASSERT_EQ(result.status, MRI_OK) << result.text;
  EXPECT_GT(rsp.usage.warm_tokens, 200u);
  EXPECT_GT(rsp.usage.cold_tokens, 500u);
  EXPECT_LT(distance(logits, last_logits(exact, tokens)), 2e-4);
}

TEST_F(EngineStepsTest, ColdBlocksThatAreReadComeBack) {
  LightStackOptions recalling = aged(options(), 64, 128);
  recalling.tier_params.emplace_back("promote_reads", Value(int64_t{4}));
  LightStack stack(recalling);
  uint64_t ctx = 0;
  mri_init_rsp rsp{};
  ASSERT_EQ(stack.init(random_tokens(600), &ctx, nullptr, 0, 0, nullptr, &rsp).status, MRI_OK);
  ASSERT_GT(rsp.usage.cold_tokens, 300u);
  mri_kv_usage usage{};
  for (int32_t step = 0; step < 40; ++step)
    ASSERT_EQ(stack.step(ctx, std::span(&step, 1), nullptr, false, &usage).status, MRI_OK);
  EXPECT_LT(usage.cold_tokens, 64u);  // dense attention reads them all
  EXPECT_GT(usage.warm_tokens, 500u);
}

TEST_F(EngineStepsTest, ProgressIsToldAfterEachChunk) {
  LightStack stack(options());
  const std::vector<int32_t> tokens = random_tokens(700);
  std::vector<uint64_t> done;
  mri_init_req req{};
  req.hdr.struct_size = sizeof(req);
  req.tokens = tokens.data();
  req.n_tokens = tokens.size();
  req.chunk_tokens = 300;
  req.progress_user = &done;
  req.progress = [](void* user, uint64_t now, uint64_t n) {
    EXPECT_EQ(n, 700u);
    static_cast<std::vector<uint64_t>*>(user)->push_back(now);
  };
  mri_init_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  mri_error err{};
  err.struct_size = sizeof(err);
  ASSERT_EQ(stack.runtime().table->init_context(stack.runtime().self, &req, &rsp, &err), MRI_OK);
  EXPECT_THAT(done, testing::ElementsAre(300, 600, 700));
  EXPECT_EQ(rsp.n_chunks, 3u);
  // A chunk beyond all bounds is a chunk of all there is.
  req.chunk_tokens = UINT32_MAX;
  ASSERT_EQ(stack.runtime().table->init_context(stack.runtime().self, &req, &rsp, &err), MRI_OK);
  EXPECT_EQ(done.back(), 700u);
}

TEST_F(EngineStepsTest, AChunkWithoutRoomIsHalved) {
  LightStackOptions tight = aged(options(), 64, 100000);
  LightStack stack(tight);
  const std::vector<int32_t> tokens = random_tokens(2048);
  uint64_t ctx = 0;
  mri_init_rsp rsp{};
  ASSERT_EQ(stack.init(tokens, &ctx, nullptr, 0, 0, nullptr, &rsp).status, MRI_OK);
  const uint64_t all = rsp.usage.hot_bytes + rsp.usage.warm_bytes;
  stack.release(ctx);
  const LightStack::Result result = stack.init(tokens, &ctx, nullptr, all, 2048, nullptr, &rsp);
  ASSERT_EQ(result.status, MRI_OK) << result.text;
  EXPECT_GT(rsp.n_chunks, 1u);
  EXPECT_GT(rsp.n_chunks_retried, 0u);
}

}  // namespace
}  // namespace varve::test
