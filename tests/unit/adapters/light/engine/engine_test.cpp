// What a user of mri.runtime/1 may rely on, on a model of two layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/unit/adapters/light/engine/engine_fixture.h"

namespace varve::test {
namespace {

using testing::HasSubstr;

using EngineTest = EngineFixture;

TEST_F(EngineTest, ChunkedPrefillEqualsWholeAndTokenByToken) {
  LightStack stack(options());
  const std::vector<int32_t> tokens = random_tokens(333);
  const std::vector<float> whole = last_logits(stack, tokens);
  EXPECT_LT(distance(whole, last_logits(stack, tokens, 100)), 2e-4);
  EXPECT_LT(distance(whole, last_logits(stack, tokens, 33)), 2e-4);
  uint64_t ctx = 0;
  ASSERT_EQ(stack.init({}, &ctx).status, MRI_OK);
  std::vector<float> logits(kVocab);
  for (int32_t token : tokens)
    ASSERT_EQ(stack.step(ctx, std::span(&token, 1), logits.data()).status, MRI_OK);
  EXPECT_LT(distance(whole, logits), 2e-4);
}

TEST_F(EngineTest, BatchOfSequencesEqualsEachAlone) {
  LightStack stack(options());
  std::vector<uint64_t> contexts(3);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<float>> batched(3, std::vector<float>(kVocab));
  std::vector<mri_step_seq> seqs(3);
  const std::vector<int32_t> next = random_tokens(40, 9);
  for (uint32_t i = 0; i < 3; ++i) {
    prompts.push_back(random_tokens(20 + 37 * i, i));
    ASSERT_EQ(stack.init(prompts[i], &contexts[i]).status, MRI_OK);
    seqs[i].ctx = contexts[i];
    seqs[i].tokens = next.data();
    seqs[i].n_tokens = 1 + 17 * i;
    seqs[i].logits = batched[i].data();
  }
  mri_step_req req{};
  req.hdr.struct_size = sizeof(req);
  req.seqs = seqs.data();
  req.n_seqs = 3;
  mri_step_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  mri_error err{};
  err.struct_size = sizeof(err);
  ASSERT_EQ(stack.runtime().table->forward_step(stack.runtime().self, &req, &rsp, &err), MRI_OK)
      << err.msg;
  EXPECT_EQ(rsp.n_tokens, 1u + 18u + 35u);
  for (uint32_t i = 0; i < 3; ++i) {
    std::vector<int32_t> text = prompts[i];
    text.insert(text.end(), next.begin(),
                next.begin() + static_cast<std::ptrdiff_t>(seqs[i].n_tokens));
    EXPECT_LT(distance(batched[i], last_logits(stack, text)), 2e-4) << i;
  }
}

TEST_F(EngineTest, AFailedSequenceDoesNotHarmItsNeighbours) {
  LightStack stack(options());
  uint64_t good = 0;
  const std::vector<int32_t> prompt = random_tokens(50);
  ASSERT_EQ(stack.init(prompt, &good).status, MRI_OK);
  const int32_t fine = 7, outside = 100000;
  std::vector<float> logits(kVocab);
  mri_step_seq seqs[3] = {};
  seqs[0] = {good, &fine, 1, logits.data(), 0, 0, 0, 0, 0, 0};
  seqs[1] = {good + 999, &fine, 1, nullptr, 0, 0, 0, 0, 0, 0};
  uint64_t other = 0;
  ASSERT_EQ(stack.init(prompt, &other).status, MRI_OK);
  seqs[2] = {other, &outside, 1, nullptr, 0, 0, 0, 0, 0, 0};
  mri_step_req req{};
  req.hdr.struct_size = sizeof(req);
  req.seqs = seqs;
  req.n_seqs = 3;
  mri_step_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  mri_error err{};
  err.struct_size = sizeof(err);
  ASSERT_EQ(stack.runtime().table->forward_step(stack.runtime().self, &req, &rsp, &err), MRI_OK)
      << err.msg;
  EXPECT_EQ(seqs[0].status, MRI_OK);
  EXPECT_EQ(seqs[1].status, MRI_E_NOT_FOUND);
  EXPECT_EQ(seqs[2].status, MRI_E_ARG);
  std::vector<int32_t> text = prompt;
  text.push_back(fine);
  EXPECT_LT(distance(logits, last_logits(stack, text)), 2e-4);
}

TEST_F(EngineTest, Int8TierStaysCloseAndSavesMemory) {
  LightStack exact(options());
  LightStack tiers(aged(options(), 64, 100000));
  const std::vector<int32_t> tokens = random_tokens(1500);
  uint64_t ctx = 0;
  mri_init_rsp rsp{};
  std::vector<float> logits(kVocab);
  ASSERT_EQ(tiers.init(tokens, &ctx, logits.data(), 0, 0, nullptr, &rsp).status, MRI_OK);
  EXPECT_GT(rsp.usage.warm_tokens, 1300u);
  EXPECT_LT(rsp.usage.hot_bytes + rsp.usage.warm_bytes,
            0.70 * static_cast<double>(rsp.usage.bf16_bytes));
  EXPECT_LT(distance(logits, last_logits(exact, tokens)), 0.05);
}

TEST_F(EngineTest, ColdBlocksComeBackFromTheBacking) {
  const std::vector<int32_t> tokens = random_tokens(1500);
  LightStack warm(aged(options(), 64, 100000));
  const std::vector<float> expected = last_logits(warm, tokens);
  for (const char* backing : {"ram", "file"}) {
    LightStackOptions cold = aged(options(), 64, 128);
    cold.runtime_params.emplace_back("backing", Value(std::string(backing)));
    cold.runtime_params.emplace_back("backing_dir", Value(folder_.path()));
    LightStack stack(cold);
    uint64_t ctx = 0;
    mri_init_rsp rsp{};
    std::vector<float> logits(kVocab);
    ASSERT_EQ(stack.init(tokens, &ctx, logits.data(), 0, 0, nullptr, &rsp).status, MRI_OK)
        << backing;
    EXPECT_GT(rsp.usage.cold_tokens, 1000u) << backing;
    EXPECT_GT(rsp.usage.backing_bytes, rsp.usage.cold_bytes) << backing;
    EXPECT_LT(distance(logits, expected), 0.05) << backing;
  }
}

TEST_F(EngineTest, WithoutABackingOnlySummarisedBlocksGoCold) {
  LightStackOptions lossy = aged(options(), 64, 128);
  lossy.runtime_params.emplace_back("backing", Value(std::string("none")));
  const std::vector<int32_t> tokens = random_tokens(3000);
  {
    LightStack stack(lossy);
    uint64_t ctx = 0;
    mri_init_rsp rsp{};
    ASSERT_EQ(stack.init(tokens, &ctx, nullptr, 0, 0, nullptr, &rsp).status, MRI_OK);
    EXPECT_EQ(rsp.usage.cold_tokens, 0u);
  }
  lossy.summary = "clusters";
  lossy.attention = "hybrid";
  lossy.attention_params = {{"dense_below_tokens", Value(int64_t{0})},
                            {"window_tokens", Value(int64_t{64})}};
  LightStack stack(lossy);
  uint64_t ctx = 0;
  mri_init_rsp rsp{};
  std::vector<float> logits(kVocab);
  ASSERT_EQ(stack.init(tokens, &ctx, logits.data(), 0, 0, nullptr, &rsp).status, MRI_OK);
  EXPECT_GT(rsp.usage.cold_tokens, 1000u);
  EXPECT_EQ(rsp.usage.backing_bytes, 0u);
  for (float logit : logits) ASSERT_TRUE(std::isfinite(logit));
}

TEST_F(EngineTest, SummaryIsLegalOnlyAfterInitAndEviction) {
  LightStack stack(options());
  uint64_t ctx = 0;
  ASSERT_EQ(stack.init(random_tokens(200), &ctx).status, MRI_OK);
  std::vector<mri_kv_block_info> blocks;
  ASSERT_EQ(stack.summary(ctx, &blocks).status, MRI_OK);
  EXPECT_EQ(blocks.size(), 7u);
  const int32_t token = 1;
  ASSERT_EQ(stack.step(ctx, std::span(&token, 1)).status, MRI_OK);
  const LightStack::Result refused = stack.summary(ctx, &blocks);
  EXPECT_EQ(refused.status, MRI_E_STATE);
  EXPECT_THAT(refused.text, HasSubstr("init_context or evict_kv"));
  mri_evict_rsp evicted{};
  ASSERT_EQ(stack.evict(ctx, {64, 64}, MRI_EVICT_BLOCK, &evicted).status, MRI_OK);
  EXPECT_EQ(stack.summary(ctx, &blocks).status, MRI_OK);
}

TEST_F(EngineTest, EvictionConfirmsWhatIsGone) {
  LightStack stack(options());
  uint64_t ctx = 0;
  ASSERT_EQ(stack.init(random_tokens(3000), &ctx).status, MRI_OK);
  std::vector<mri_kv_block_info> blocks;
  mri_summary_rsp before{};
  ASSERT_EQ(stack.summary(ctx, &blocks, &before).status, MRI_OK);
  mri_evict_rsp rsp{};
  // Block-aware: only blocks that lie wholly inside go.
  ASSERT_EQ(stack.evict(ctx, {100, 100}, MRI_EVICT_BLOCK_AWARE, &rsp).status, MRI_OK);
  EXPECT_EQ(rsp.n_evicted, 64u);
  EXPECT_EQ(rsp.confirm_state, MRI_CONFIRM_DONE);
  EXPECT_GT(rsp.confirm_epoch, before.kv_epoch);
  EXPECT_GT(rsp.bytes_freed, 0u);
  ASSERT_EQ(stack.summary(ctx, &blocks).status, MRI_OK);
  EXPECT_TRUE(std::none_of(blocks.begin(), blocks.end(),
                           [](const auto& b) { return b.position == 128 || b.position == 160; }));
  ASSERT_EQ(stack.evict(ctx, {300, 3}, MRI_EVICT_TOKEN, &rsp).status, MRI_OK);
  EXPECT_EQ(rsp.n_evicted, 3u);
  ASSERT_EQ(stack.evict(ctx, {400, 1}, MRI_EVICT_BLOCK, &rsp).status, MRI_OK);
  EXPECT_EQ(rsp.n_evicted, 32u);
  ASSERT_EQ(stack.evict(ctx, {1500, 1}, MRI_EVICT_SEGMENT, &rsp).status, MRI_OK);
  EXPECT_EQ(rsp.n_evicted, 1024u);
  // The sinks stay.
  ASSERT_EQ(stack.evict(ctx, {0, 32}, MRI_EVICT_BLOCK, &rsp).status, MRI_OK);
  EXPECT_EQ(rsp.n_evicted, 0u);
  EXPECT_EQ(rsp.n_refused, 1u);
  EXPECT_EQ(rsp.confirm_state, MRI_CONFIRM_REFUSED);
  std::vector<float> logits(kVocab);
  const int32_t token = 3;
  ASSERT_EQ(stack.step(ctx, std::span(&token, 1), logits.data()).status, MRI_OK);
  for (float logit : logits) ASSERT_TRUE(std::isfinite(logit));
}

TEST_F(EngineTest, EvictedTokensAreNotAttended) {
  LightStack stack(options());
  std::vector<int32_t> a = random_tokens(256, 1), b = a;
  for (size_t i = 128; i < 160; ++i) b[i] = (a[i] + 1) % 256;
  const int32_t next = 5;
  // With one layer of context the two differ only by keys and values of the evicted block and what
  // later tokens took from it, so the step must move nearer when the block goes.
  const auto step_after = [&](const std::vector<int32_t>& text, bool evict) {
    uint64_t ctx = 0;
    EXPECT_EQ(stack.init(text, &ctx).status, MRI_OK);
    mri_evict_rsp rsp{};
    if (evict) {
      EXPECT_EQ(stack.evict(ctx, {128, 128}, MRI_EVICT_TOKEN, &rsp).status, MRI_OK);
    }
    std::vector<float> logits(kVocab);
    EXPECT_EQ(stack.step(ctx, std::span(&next, 1), logits.data()).status, MRI_OK);
    return logits;
  };
  EXPECT_GT(distance(step_after(a, false), step_after(b, false)), 1e-3);
  EXPECT_LT(distance(step_after(a, true), step_after(b, true)), 1e-6);
}

TEST_F(EngineTest, BudgetIsAnErrorForThatContextAlone) {
  LightStack stack(options());
  const std::vector<int32_t> tokens = random_tokens(600);
  uint64_t ctx = 0, small = 0;
  mri_init_rsp rsp{};
  ASSERT_EQ(stack.init(tokens, &ctx, nullptr, 0, 0, nullptr, &rsp).status, MRI_OK);
  const uint64_t all = rsp.usage.hot_bytes;
  const LightStack::Result refused = stack.init(tokens, &small, nullptr, all / 2);
  EXPECT_EQ(refused.status, MRI_E_NOMEM);
  EXPECT_THAT(refused.text, HasSubstr("bytes"));
  EXPECT_EQ(stack.init(tokens, &small, nullptr, all).status, MRI_OK);
  std::vector<float> logits(kVocab);
  const int32_t token = 3;
  EXPECT_EQ(stack.step(ctx, std::span(&token, 1), logits.data()).status, MRI_OK);
}

TEST_F(EngineTest, PressureCompressesBeforeItRefuses) {
  LightStack stack(aged(options(), 100000, 100000));
  const std::vector<int32_t> tokens = random_tokens(1024);
  uint64_t ctx = 0;
  mri_init_rsp rsp{};
  ASSERT_EQ(stack.init(tokens, &ctx, nullptr, 0, 0, nullptr, &rsp).status, MRI_OK);
  const uint64_t budget = rsp.usage.hot_bytes * 3 / 4;
  stack.release(ctx);
  const LightStack::Result result = stack.init(tokens, &ctx, nullptr, budget, 256, nullptr, &rsp);
  ASSERT_EQ(result.status, MRI_OK) << result.text;
  EXPECT_GT(rsp.usage.warm_tokens, 0u);
  EXPECT_LE(rsp.usage.hot_bytes + rsp.usage.warm_bytes + rsp.usage.cold_bytes, budget);
}

TEST_F(EngineTest, SinksAndPinnedRangesStayHot) {
  LightStack stack(aged(options(), 64, 128));
  uint64_t ctx = 0;
  const mri_token_range pinned{300, 10};
  ASSERT_EQ(stack.init(random_tokens(1000), &ctx, nullptr, 0, 0, &pinned).status, MRI_OK);
  std::vector<mri_kv_block_info> blocks;
  ASSERT_EQ(stack.summary(ctx, &blocks).status, MRI_OK);
  EXPECT_EQ(blocks[0].tier, MRI_TIER_HOT);
  EXPECT_EQ(blocks[300 / 32].tier, MRI_TIER_HOT);
  EXPECT_EQ(blocks[300 / 32 + 2].tier, MRI_TIER_COLD);
}

TEST_F(EngineTest, AFailedChunkIsRetriedAlone) {
  LightStackOptions flaky = options();
  flaky.attention = "flaky";
  const std::vector<int32_t> tokens = random_tokens(700);
  LightStack stack(flaky), exact(options());
  uint64_t ctx = 0;
  mri_init_rsp rsp{};
  std::vector<float> logits(kVocab);
  ASSERT_EQ(stack.init(tokens, &ctx, logits.data(), 0, 256, nullptr, &rsp).status, MRI_OK);
  EXPECT_EQ(rsp.n_chunks, 3u);
  EXPECT_EQ(rsp.n_chunks_retried, 1u);
  EXPECT_LT(distance(logits, last_logits(exact, tokens)), 2e-4);
  flaky.attention_params = {{"failures", Value(int64_t{2})}};
  LightStack broken(flaky);
  const LightStack::Result result = broken.init(tokens, &ctx, nullptr, 0, 256);
  EXPECT_EQ(result.status, MRI_E_DEVICE);
  EXPECT_THAT(result.text, HasSubstr("flaky"));
}

TEST_F(EngineTest, CancelLeavesNoContext) {
  LightStack stack(options());
  const std::vector<int32_t> tokens = random_tokens(600);
  uint32_t cancel = 1;
  mri_init_req req{};
  req.hdr.struct_size = sizeof(req);
  req.tokens = tokens.data();
  req.n_tokens = tokens.size();
  req.cancel = &cancel;
  mri_init_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  mri_error err{};
  err.struct_size = sizeof(err);
  EXPECT_EQ(stack.runtime().table->init_context(stack.runtime().self, &req, &rsp, &err),
            MRI_E_CANCELLED);
  EXPECT_EQ(rsp.ctx, 0u);
}

TEST_F(EngineTest, TooLongPromptNamesTheLimit) {
  LightStack stack(options());
  uint64_t ctx = 0;
  const LightStack::Result result = stack.init(random_tokens(9000), &ctx);
  EXPECT_EQ(result.status, MRI_E_ARG);
  EXPECT_THAT(result.text, HasSubstr("8192"));
}

}  // namespace
}  // namespace varve::test
