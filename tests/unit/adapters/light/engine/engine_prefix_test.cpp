// Contexts that go on from a kept prefix answer as if they had read it themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "mri/ext/memory.h"
#include "tests/unit/adapters/light/engine/engine_fixture.h"

namespace varve::test {
namespace {

using Tokens = std::vector<int32_t>;

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class EnginePrefixTest : public EngineFixture {
 protected:
  using Result = LightStack::Result;

  static std::vector<mri_prefix_key> keys_of(const Tokens& tokens) {
    std::vector<mri_prefix_key> keys(tokens.size() / MRI_BLOCK_TOKENS);
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < keys.size() * MRI_BLOCK_TOKENS; ++i) {
      hash = (hash ^ static_cast<uint64_t>(tokens[i])) * 1099511628211u;
      std::memcpy(keys[i / MRI_BLOCK_TOKENS].bytes, &hash, sizeof(hash));
    }
    return keys;
  }
  static mri_error error() {
    mri_error err{};
    err.struct_size = sizeof(err);
    return err;
  }

  static Result keep(LightStack& stack, uint64_t ctx, const Tokens& tokens, uint32_t flags = 0) {
    const auto memory = stack.stack().memory();
    const auto keys = keys_of(tokens);
    mri_error err = error();
    return {memory.table->keep(memory.self, ctx, keys.data(), keys.size(), flags, &err), err.msg};
  }
  static mri_reuse_rsp reuse(LightStack& stack, const Tokens& tokens, uint64_t budget = 0) {
    const auto memory = stack.stack().memory();
    const auto keys = keys_of(tokens);
    mri_reuse_req req{};
    req.hdr.struct_size = sizeof(req);
    req.keys = keys.data();
    req.n_keys = keys.size();
    req.budget_bytes = budget;
    mri_reuse_rsp rsp{};
    rsp.hdr.struct_size = sizeof(rsp);
    mri_error err = error();
    EXPECT_EQ(memory.table->reuse(memory.self, &req, &rsp, &err), MRI_OK) << err.msg;
    return rsp;
  }
  static Result forget(LightStack& stack, const Tokens& tokens) {
    const auto memory = stack.stack().memory();
    mri_error err = error();
    return {memory.table->forget(memory.self, &keys_of(tokens).back(), &err), err.msg};
  }
  static Result shrink(LightStack& stack, uint64_t ctx, uint64_t wanted, uint64_t* freed) {
    const auto memory = stack.stack().memory();
    mri_error err = error();
    return {memory.table->shrink(memory.self, ctx, wanted, freed, &err), err.msg};
  }
  static mri_memory_usage usage(LightStack& stack) {
    const auto memory = stack.stack().memory();
    mri_memory_usage usage{};
    usage.hdr.struct_size = sizeof(usage);
    mri_error err = error();
    EXPECT_EQ(memory.table->usage(memory.self, &usage, &err), MRI_OK) << err.msg;
    return usage;
  }

  // Logits of each of the next tokens, one step each.
  static std::vector<float> answer(LightStack& stack, uint64_t ctx, const Tokens& tokens) {
    std::vector<float> logits(tokens.size() * kVocab);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const Result result = stack.step(ctx, std::span(&tokens[i], 1), logits.data() + i * kVocab);
      EXPECT_EQ(result.status, MRI_OK) << result.text;
    }
    return logits;
  }

  LightStackOptions lossy() const {
    LightStackOptions options = aged(EngineFixture::options(), 64, 1024);
    options.summary = "clusters";
    options.attention = "hybrid";
    options.attention_params = {{"dense_below_tokens", Value(int64_t{0})},
                                {"dense_prompt_tokens", Value(int64_t{0})},
                                {"top_k_blocks", Value(int64_t{8})},
                                {"window_tokens", Value(int64_t{64})}};
    return options;
  }
};

TEST_F(EnginePrefixTest, EqualsAFreshContext) {
  LightStack stack(options());
  const Tokens text = random_tokens(203, 1), next = random_tokens(9, 2);
  uint64_t first = 0;
  ASSERT_EQ(stack.init(text, &first).status, MRI_OK);
  ASSERT_EQ(keep(stack, first, text).status, MRI_OK);
  stack.release(first);
  const mri_reuse_rsp again = reuse(stack, text);
  ASSERT_EQ(again.n_tokens, 192u);
  std::vector<float> logits(kVocab);
  const Tokens rest = joined(Tokens(text.begin() + 192, text.end()), next);
  ASSERT_EQ(stack.step(again.ctx, rest, logits.data()).status, MRI_OK);
  EXPECT_LT(distance(logits, last_logits(stack, joined(text, next))), 1e-5);
}

TEST_F(EnginePrefixTest, EqualsGoingOnWithTheOriginal) {
  for (const char* backing : {"ram", "none"}) {
    LightStackOptions options = lossy();
    options.runtime_params.emplace_back("backing", Value(std::string(backing)));
    LightStack stack(options);
    const Tokens text = random_tokens(96 * 32, 3), next = random_tokens(70, 4);
    uint64_t original = 0;
    mri_init_rsp read{};
    ASSERT_EQ(stack.init(text, &original, nullptr, 0, 0, nullptr, &read).status, MRI_OK);
    EXPECT_GT(read.usage.cold_tokens, 1000u);
    ASSERT_EQ(keep(stack, original, text).status, MRI_OK);
    const mri_reuse_rsp again = reuse(stack, text);
    ASSERT_EQ(again.n_tokens, text.size());
    std::vector<mri_kv_block_info> before, after;
    mri_summary_rsp was{}, is{};
    ASSERT_EQ(stack.summary(original, &before, &was).status, MRI_OK);
    ASSERT_EQ(stack.summary(again.ctx, &after, &is).status, MRI_OK);
    ASSERT_EQ(before.size(), after.size());
    EXPECT_EQ(std::memcmp(before.data(), after.data(), before.size() * sizeof(before[0])), 0);
    EXPECT_EQ(was.kv_epoch, is.kv_epoch);
    EXPECT_EQ(answer(stack, original, next), answer(stack, again.ctx, next)) << backing;
  }
}

TEST_F(EnginePrefixTest, ForksGoTheirOwnWay) {
  LightStack stack(options());
  const Tokens text = random_tokens(160, 5), yes = random_tokens(40, 6), no = random_tokens(40, 7);
  uint64_t original = 0;
  ASSERT_EQ(stack.init(text, &original).status, MRI_OK);
  ASSERT_EQ(keep(stack, original, text).status, MRI_OK);
  const uint64_t a = reuse(stack, text).ctx, b = reuse(stack, text).ctx;
  const std::vector<float> of_a = answer(stack, a, yes), of_b = answer(stack, b, no);
  stack.release(a);
  EXPECT_EQ(answer(stack, original, no), of_b);
  const auto last = [](const std::vector<float>& all) { return std::span(all).last(kVocab); };
  EXPECT_LT(distance(last(of_a), last_logits(stack, joined(text, yes))), 1e-4);
  EXPECT_LT(distance(last(of_b), last_logits(stack, joined(text, no))), 1e-4);
}

TEST_F(EnginePrefixTest, AnEvictionInAForkLeavesTheOthersAlone) {
  LightStack stack(options());
  const Tokens text = random_tokens(320, 8), next = random_tokens(5, 9);
  uint64_t original = 0, control = 0;
  ASSERT_EQ(stack.init(text, &original).status, MRI_OK);
  ASSERT_EQ(stack.init(text, &control).status, MRI_OK);
  ASSERT_EQ(keep(stack, original, text).status, MRI_OK);
  const uint64_t fork = reuse(stack, text).ctx, other = reuse(stack, text).ctx;
  mri_evict_rsp rsp{};
  ASSERT_EQ(stack.evict(fork, {40, 200}, MRI_EVICT_TOKEN, &rsp).status, MRI_OK);
  EXPECT_EQ(rsp.n_evicted, 200u);
  const std::vector<float> expected = answer(stack, control, next);
  EXPECT_EQ(answer(stack, original, next), expected);
  EXPECT_EQ(answer(stack, other, next), expected);
  EXPECT_NE(answer(stack, fork, next), expected);
}

TEST_F(EnginePrefixTest, UsageCountsSharedBlocksOnceAndEndsAtNothing) {
  LightStack stack(options());
  const Tokens text = random_tokens(128, 10);
  uint64_t original = 0;
  ASSERT_EQ(stack.init(text, &original).status, MRI_OK);
  const uint64_t alone = usage(stack).used_bytes;
  ASSERT_EQ(keep(stack, original, text, MRI_KEEP_PINNED).status, MRI_OK);
  const uint64_t fork = reuse(stack, text).ctx;
  mri_memory_usage now = usage(stack);
  EXPECT_EQ(now.used_bytes, alone);
  EXPECT_EQ(now.kept_bytes, 0u);
  EXPECT_EQ(now.kept_prefixes, 1u);
  EXPECT_EQ(now.contexts, 2u);
  stack.release(original);
  stack.release(fork);
  now = usage(stack);
  EXPECT_EQ(now.kept_bytes, alone);
  EXPECT_EQ(now.contexts, 0u);
  uint64_t freed = 1;
  EXPECT_EQ(shrink(stack, 0, 1, &freed).status, MRI_OK);
  EXPECT_EQ(freed, 0u) << "pinned";
  ASSERT_EQ(forget(stack, text).status, MRI_OK);
  now = usage(stack);
  EXPECT_EQ(now.used_bytes, 0u);
  EXPECT_EQ(now.kept_bytes, 0u);
  EXPECT_EQ(now.kept_prefixes, 0u);
  EXPECT_EQ(reuse(stack, text).ctx, 0u);
}

TEST_F(EnginePrefixTest, ANewTextTakesTheRoomOfKeptOnes) {
  LightStackOptions small = options();
  small.runtime_params.emplace_back("kv_budget_mb", Value(int64_t{1}));
  LightStack stack(small);
  const uint64_t budget = usage(stack).budget_bytes;
  ASSERT_EQ(budget, 1u << 20);
  uint64_t ctx = 0;
  size_t fits = 0;
  for (size_t n = 32; stack.init(random_tokens(n), &ctx).status == MRI_OK; n += 32) {
    stack.release(ctx);
    fits = n;
  }
  ASSERT_GT(fits, 64u);
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const Tokens text = random_tokens(fits, seed);
    ASSERT_EQ(stack.init(text, &ctx).status, MRI_OK) << seed;
    ASSERT_EQ(keep(stack, ctx, text).status, MRI_OK);
    stack.release(ctx);
  }
  EXPECT_EQ(usage(stack).kept_prefixes, 1u);
  uint64_t freed = 0;
  ASSERT_EQ(shrink(stack, 0, 1, &freed).status, MRI_OK);
  EXPECT_GT(freed, 0u);
  EXPECT_EQ(usage(stack).used_bytes, 0u);
}

TEST_F(EnginePrefixTest, ShrinkingAContextCompressesIt) {
  LightStackOptions small = aged(options(), 4096, 4096);
  small.runtime_params.emplace_back("kv_budget_mb", Value(int64_t{64}));
  LightStack stack(small);
  uint64_t ctx = 0, freed = 0;
  ASSERT_EQ(stack.init(random_tokens(512), &ctx).status, MRI_OK);
  const uint64_t before = usage(stack).used_bytes;
  ASSERT_EQ(shrink(stack, ctx, 1000, &freed).status, MRI_OK);
  EXPECT_GE(freed, 1000u);
  EXPECT_EQ(usage(stack).used_bytes, before - freed);
  EXPECT_EQ(shrink(stack, ctx + 99, 1u << 30, &freed).status, MRI_E_NOT_FOUND);
}

TEST_F(EnginePrefixTest, WhatCannotBeReusedIsReadAnew) {
  LightStack stack(options());
  const Tokens text = random_tokens(128, 11);
  uint64_t ctx = 0;
  ASSERT_EQ(stack.init(text, &ctx).status, MRI_OK);
  EXPECT_EQ(keep(stack, ctx + 7, text).status, MRI_E_NOT_FOUND);
  ASSERT_EQ(keep(stack, ctx, random_tokens(20)).status, MRI_OK);  // not one whole block
  EXPECT_EQ(usage(stack).kept_prefixes, 0u);
  ASSERT_EQ(keep(stack, ctx, text).status, MRI_OK);
  EXPECT_EQ(reuse(stack, random_tokens(128, 12)).ctx, 0u);
  EXPECT_EQ(reuse(stack, text, 1000).ctx, 0u) << "larger than the context's budget";
  EXPECT_EQ(usage(stack).contexts, 1u);
}

}  // namespace
}  // namespace varve::test
