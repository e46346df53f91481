// The dense path against libllama's logits, on small models of every family, through the same
// interface.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/light_stack.h"
#include "tests/support/tiny_models.h"

namespace varve::test {
namespace {

constexpr size_t kVocab = 264;
constexpr size_t kTokens = 150;
constexpr double kF32Tolerance = 2e-4;  // of logits around 1; both sum in f32, in different orders

std::vector<float> all_logits(LightStack& stack) {
  uint64_t ctx = 0;
  std::vector<float> logits(kTokens * kVocab);
  EXPECT_EQ(stack.init({}, &ctx).status, MRI_OK);
  const LightStack::Result result = stack.step(ctx, random_tokens(kTokens), logits.data(), true);
  EXPECT_EQ(result.status, MRI_OK) << result.text;
  return logits;
}

struct Case {
  const char* name;
  light::Architecture family;
  bool tied, llama3_rope;
};

class EngineParityTest : public testing::TestWithParam<Case> {};

TEST_P(EngineParityTest, LogitsEqualLibllamas) {
  TempDir folder;
  TinyOptions tiny;
  tiny.tied = GetParam().tied;
  tiny.llama3_rope = GetParam().llama3_rope;
  write_gguf(tiny_model(GetParam().family, tiny), folder.path("model.gguf"));
  LightStackOptions ours;
  ours.model_path = folder.path("model.gguf");
  ours.runtime_params = {{"compute", Value(std::string("f32"))},
                         {"max_tokens", Value(int64_t{512})}};
  LightStackOptions theirs;
  theirs.model_path = ours.model_path;
  theirs.runtime = "llama_cpp";
  theirs.runtime_params = {{"kv_type", Value(std::string("f32"))},
                           {"flash_attention", Value(false)},
                           {"max_tokens", Value(int64_t{512})}};
  LightStack light(ours), llama(theirs);
  const std::vector<float> a = all_logits(light), b = all_logits(llama);
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_NEAR(a[i], b[i], kF32Tolerance * (1 + std::abs(b[i])))
        << "token " << i / kVocab << ", logit " << i % kVocab;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, EngineParityTest,
    testing::Values(Case{"llama", light::Architecture::kLlama, false, false},
                    Case{"llama_tied", light::Architecture::kLlama, true, false},
                    Case{"llama3_rope", light::Architecture::kLlama, false, true},
                    Case{"qwen2", light::Architecture::kQwen2, false, false},
                    Case{"qwen3", light::Architecture::kQwen3, false, false},
                    Case{"mistral", light::Architecture::kMistral, false, false}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace varve::test
