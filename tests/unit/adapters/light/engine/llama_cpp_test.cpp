// The peer keeps to the same contract where it can.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/adapters/light/engine/engine_fixture.h"

namespace varve::test {
namespace {

using testing::HasSubstr;

class LlamaCppTest : public EngineFixture {
 protected:
  LightStackOptions peer() const {
    LightStackOptions options;
    options.model_path = model_path();
    options.runtime = "llama_cpp";
    options.runtime_params = {{"max_tokens", Value(int64_t{256})},
                              {"ubatch_tokens", Value(int64_t{64})},
                              {"kv_type", Value(std::string("f32"))}};
    return options;
  }
};

TEST_F(LlamaCppTest, RefusesWhatItCannotRun) {
  LightStack stack(peer());
  uint64_t ctx = 0;
  const std::vector<int32_t> outside = {1, 100000};
  LightStack::Result result = stack.init(outside, &ctx);
  EXPECT_EQ(result.status, MRI_E_ARG);
  EXPECT_THAT(result.text, HasSubstr("100000"));
  result = stack.init(random_tokens(257), &ctx);
  EXPECT_EQ(result.status, MRI_E_ARG);
  EXPECT_THAT(result.text, HasSubstr("256"));
  ASSERT_EQ(stack.init(random_tokens(250), &ctx).status, MRI_OK);
  result = stack.step(ctx, random_tokens(7));
  EXPECT_EQ(result.status, MRI_E_ARG);
  EXPECT_THAT(result.text, HasSubstr("250"));
  EXPECT_EQ(stack.step(ctx, outside).status, MRI_E_ARG);
  EXPECT_EQ(stack.step(ctx, {}).status, MRI_E_ARG);
  EXPECT_EQ(stack.step(ctx, random_tokens(6)).status, MRI_OK);
}

TEST_F(LlamaCppTest, CountsEvictedTokensOnce) {
  LightStack stack(peer());
  uint64_t ctx = 0;
  ASSERT_EQ(stack.init(random_tokens(100), &ctx).status, MRI_OK);
  mri_evict_rsp rsp{};
  ASSERT_EQ(stack.evict(ctx, {10, 5}, MRI_EVICT_TOKEN, &rsp).status, MRI_OK);
  EXPECT_EQ(rsp.n_evicted, 5u);
  EXPECT_EQ(rsp.confirm_state, MRI_CONFIRM_UNKNOWN);
  ASSERT_EQ(stack.evict(ctx, {12, 1}, MRI_EVICT_BLOCK, &rsp).status, MRI_OK);
  EXPECT_EQ(rsp.n_evicted, 27u);
  ASSERT_EQ(stack.evict(ctx, {500, 10}, MRI_EVICT_SEGMENT, &rsp).status, MRI_OK);
  EXPECT_EQ(rsp.n_evicted, 0u);
  // The last token stays, so that the text can go on.
  ASSERT_EQ(stack.evict(ctx, {90, UINT64_MAX}, MRI_EVICT_TOKEN, &rsp).status, MRI_OK);
  EXPECT_EQ(rsp.n_evicted, 9u);
  EXPECT_EQ(rsp.n_refused, 1u);
  mri_kv_usage usage{};
  const int32_t token = 1;
  ASSERT_EQ(stack.step(ctx, std::span(&token, 1), nullptr, false, &usage).status, MRI_OK);
  EXPECT_EQ(usage.hot_tokens, 101u - 32u - 9u);
}

}  // namespace
}  // namespace varve::test
