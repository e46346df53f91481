// engine_fixture.h: engines on a model of two layers, in f32.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "tests/support/light_stack.h"
#include "tests/support/tiny_models.h"

namespace varve::test {

inline constexpr size_t kVocab = 264;

inline double distance(std::span<const float> a, std::span<const float> b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
  return worst;
}

class EngineFixture : public testing::Test {
 protected:
  EngineFixture() { write_gguf(tiny_model(light::Architecture::kLlama), model_path()); }
  std::string model_path() const { return folder_.path("model.gguf"); }

  LightStackOptions options() const {
    LightStackOptions options;
    options.model_path = model_path();
    options.runtime_params = {{"compute", Value(std::string("f32"))},
                              {"max_tokens", Value(int64_t{8192})},
                              {"prefill_chunk_tokens", Value(int64_t{512})}};
    return options;
  }
  static LightStackOptions aged(LightStackOptions options, int64_t hot, int64_t warm) {
    options.tier = "age";
    options.tier_params = {{"hot_tokens", Value(hot)}, {"warm_tokens", Value(warm)}};
    return options;
  }

  std::vector<float> last_logits(LightStack& stack, std::span<const int32_t> tokens,
                                 uint32_t chunk = 0) {
    std::vector<float> logits(kVocab);
    uint64_t ctx = 0;
    const LightStack::Result result = stack.init(tokens, &ctx, logits.data(), 0, chunk);
    EXPECT_EQ(result.status, MRI_OK) << result.text;
    stack.release(ctx);
    return logits;
  }

  TempDir folder_;
};

}  // namespace varve::test
