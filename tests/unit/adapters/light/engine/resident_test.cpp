// Weights that stay unpacked give what packed ones give, and are there once.
#include "adapters/light/forward/resident.h"

#include <gtest/gtest.h>

#include "adapters/light/model/shared_model.h"
#include "tests/unit/adapters/light/engine/engine_fixture.h"

namespace varve::test {
namespace {

const void* no_interface(const mri_host*, const char*) { return nullptr; }
constexpr mri_host kNoHost = {sizeof(mri_host), MRI_1_1,     MRI_1_0, MRI_1_1, "", "",
                              nullptr,          no_interface};

class ResidentTest : public EngineFixture {
 protected:
  LightStackOptions options(bool resident) const {
    LightStackOptions options = EngineFixture::options();
    options.runtime_params = {{"max_tokens", Value(int64_t{8192})},
                              {"resident_weights", Value(resident)}};
    return options;
  }
};

TEST_F(ResidentTest, StepsOfAnyLengthAnswerAlike) {
  LightStack packed(options(false)), resident(options(true));
  for (const size_t n : {1u, 16u, 24u, 25u, 100u, 512u, 513u}) {
    const std::vector<int32_t> tokens = random_tokens(n, n);
    std::vector<float> all[2] = {std::vector<float>(n * kVocab), std::vector<float>(n * kVocab)};
    LightStack* stacks[] = {&packed, &resident};
    double size = 0;
    for (int i = 0; i < 2; ++i) {
      uint64_t ctx = 0;
      ASSERT_EQ(stacks[i]->init(random_tokens(20), &ctx).status, MRI_OK);
      ASSERT_EQ(stacks[i]->step(ctx, tokens, all[i].data(), true).status, MRI_OK);
      stacks[i]->release(ctx);
    }
    for (const float logit : all[0]) size = std::max(size, std::abs(static_cast<double>(logit)));
    EXPECT_LT(distance(all[0], all[1]), 0.03 * size) << n;
  }
}

TEST_F(ResidentTest, TheProcessHasOneModelAndOneUnpackedCopy) {
  const mri::Host host(&kNoHost);
  auto model = light::share_model(model_path());
  EXPECT_EQ(light::share_model(model_path()), model);
  auto resident = light::share_resident(model, host);
  EXPECT_EQ(light::share_resident(model, host), resident);
  const std::weak_ptr<const light::Model> last = model;
  model.reset();
  EXPECT_FALSE(last.expired()) << "the unpacked copy is of this model";
  resident.reset();
  EXPECT_TRUE(last.expired());
  EXPECT_NE(light::share_model(model_path()), nullptr);
}

TEST_F(ResidentTest, AnotherFileUnderTheSamePathIsAnotherModel) {
  const auto before = light::share_model(model_path());
  TinyOptions wider;
  wider.n_embd = 256;
  write_gguf(tiny_model(light::Architecture::kLlama, wider), model_path());
  const auto after = light::share_model(model_path());
  EXPECT_NE(before, after);
  EXPECT_EQ(after->config.n_embd, 256u);
}

TEST_F(ResidentTest, StacksShareAndEndInAnyOrder) {
  const std::vector<int32_t> tokens = random_tokens(60);
  auto first = std::make_unique<LightStack>(options(true));
  const std::vector<float> expected = last_logits(*first, tokens);
  auto second = std::make_unique<LightStack>(options(true));
  first.reset();
  EXPECT_EQ(last_logits(*second, tokens), expected);
  first = std::make_unique<LightStack>(options(true));
  second.reset();
  EXPECT_EQ(last_logits(*first, tokens), expected);
}

}  // namespace
}  // namespace varve::test
