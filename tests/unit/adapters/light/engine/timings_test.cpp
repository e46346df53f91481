// mri.timings/1 of the light engine.
#include "mri/ext/timings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/adapters/light/engine/engine_fixture.h"

namespace varve::test {
namespace {

class TimingsTest : public EngineFixture {
 protected:
  LightStackOptions hybrid() const {
    LightStackOptions o = options();
    o.tier = "age";
    o.tier_params = {{"hot_tokens", Value(int64_t{64})}, {"warm_tokens", Value(int64_t{512})}};
    o.attention = "hybrid";
    o.summary = "clusters";
    o.attention_params = {{"window_tokens", Value(int64_t{64})},
                          {"top_k_blocks", Value(int64_t{4})},
                          {"dense_below_tokens", Value(int64_t{128})},
                          {"dense_prompt_tokens", Value(int64_t{0})}};
    return o;
  }

  static uint64_t start(LightStack& stack, bool timed) {
    uint64_t ctx = 0;
    EXPECT_EQ(stack.init({}, &ctx).status, MRI_OK);
    const auto timings = stack.stack().peer<mri_timings_v1>(MRI_TIMINGS);
    EXPECT_EQ(timings.table->enable(timings.self, ctx, timed ? 1 : 0, nullptr), MRI_OK);
    return ctx;
  }

  static mri_timings read(LightStack& stack, uint64_t ctx, mri_status expected = MRI_OK) {
    const auto timings = stack.stack().peer<mri_timings_v1>(MRI_TIMINGS);
    mri_timings out{};
    out.hdr.struct_size = sizeof(out);
    mri_error err{};
    err.struct_size = sizeof(err);
    EXPECT_EQ(timings.table->read(timings.self, ctx, &out, &err), expected) << err.msg;
    return out;
  }
};

TEST_F(TimingsTest, OffUntilEnabled) {
  LightStack stack(options());
  const uint64_t ctx = start(stack, false);
  ASSERT_EQ(stack.step(ctx, random_tokens(40)).status, MRI_OK);
  read(stack, ctx, MRI_E_STATE);
  read(stack, ctx + 99, MRI_E_NOT_FOUND);
}

TEST_F(TimingsTest, DenseHasNoSparsePart) {
  LightStack stack(options());
  const uint64_t ctx = start(stack, true);
  ASSERT_EQ(stack.step(ctx, random_tokens(100)).status, MRI_OK);
  ASSERT_EQ(stack.step(ctx, random_tokens(1)).status, MRI_OK);
  const mri_timings t = read(stack, ctx);
  EXPECT_EQ(t.n_tokens, 101u);
  EXPECT_GT(t.local_attn_ns, 0u);
  EXPECT_GT(t.kv_cache_ns, 0u);
  EXPECT_GT(t.other_ns, 0u);
  EXPECT_EQ(t.sparse_attn_ns + t.summary_attn_ns + t.n_choices, 0u);
}

TEST_F(TimingsTest, HybridTellsItsParts) {
  LightStack stack(hybrid());
  const uint64_t ctx = start(stack, true);
  ASSERT_EQ(stack.step(ctx, random_tokens(3000)).status, MRI_OK);
  const mri_timings prompt = read(stack, ctx);
  EXPECT_EQ(prompt.n_choices, 0u) << "a prompt's choices are not counted";
  for (int i = 0; i < 3; ++i) ASSERT_EQ(stack.step(ctx, random_tokens(1)).status, MRI_OK);
  const mri_timings t = read(stack, ctx);
  EXPECT_EQ(t.n_tokens, 3003u);
  EXPECT_GT(t.local_attn_ns, prompt.local_attn_ns);
  EXPECT_GT(t.sparse_attn_ns, prompt.sparse_attn_ns);
  EXPECT_GT(t.summary_attn_ns, prompt.summary_attn_ns);
  EXPECT_GT(t.n_choices, 0u);
  EXPECT_EQ(t.blocks_chosen, 4 * t.n_choices);
  EXPECT_GT(t.blocks_chosen_again, 0u);
  EXPECT_LT(t.blocks_chosen_again, t.blocks_chosen) << "the first choice has none before";
}

TEST_F(TimingsTest, EnablingAnewStartsFromZero) {
  LightStack stack(options());
  const uint64_t ctx = start(stack, true);
  ASSERT_EQ(stack.step(ctx, random_tokens(40)).status, MRI_OK);
  const auto timings = stack.stack().peer<mri_timings_v1>(MRI_TIMINGS);
  ASSERT_EQ(timings.table->enable(timings.self, ctx, 1, nullptr), MRI_OK);
  EXPECT_EQ(read(stack, ctx).n_tokens, 0u);
  ASSERT_EQ(timings.table->enable(timings.self, ctx, 0, nullptr), MRI_OK);
  read(stack, ctx, MRI_E_STATE);
}

// Of a step that two contexts share, the one that asked gets its own part alone.
TEST_F(TimingsTest, AStepIsShared) {
  LightStack stack(hybrid());
  const uint64_t quiet = start(stack, false), timed = start(stack, true);
  const std::vector<int32_t> tokens = random_tokens(300);
  mri_step_seq seqs[2] = {};
  seqs[0].ctx = quiet;
  seqs[1].ctx = timed;
  for (mri_step_seq& seq : seqs) seq.tokens = tokens.data();
  seqs[0].n_tokens = 300;
  seqs[1].n_tokens = 20;
  mri_step_req req{};
  req.hdr.struct_size = sizeof(req);
  req.seqs = seqs;
  req.n_seqs = 2;
  mri_step_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  const auto& runtime = stack.runtime();
  ASSERT_EQ(runtime.table->forward_step(runtime.self, &req, &rsp, nullptr), MRI_OK);
  read(stack, quiet, MRI_E_STATE);
  const mri_timings t = read(stack, timed);
  EXPECT_EQ(t.n_tokens, 20u);
  EXPECT_GT(t.local_attn_ns, 0u);
  EXPECT_GT(t.other_ns, 0u);
}

TEST_F(TimingsTest, AskingChangesNoLogit) {
  LightStack stack(hybrid());
  std::vector<float> logits[2];
  for (const bool timed : {false, true}) {
    const uint64_t ctx = start(stack, timed);
    ASSERT_EQ(stack.step(ctx, random_tokens(700)).status, MRI_OK);
    logits[timed].resize(kVocab);
    for (int i = 0; i < 3; ++i)
      ASSERT_EQ(stack.step(ctx, random_tokens(1), logits[timed].data()).status, MRI_OK);
  }
  EXPECT_EQ(logits[0], logits[1]);
}

}  // namespace
}  // namespace varve::test
