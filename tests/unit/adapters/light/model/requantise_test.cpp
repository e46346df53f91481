#include "adapters/light/model/requantise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "adapters/light/model/load_model.h"
#include "adapters/light/model/model_error.h"
#include "tests/support/tiny_models.h"

namespace varve::light {
namespace {

namespace fs = std::filesystem;
using test::TempDir;
using test::tiny_model;

TEST(F32CopyTest, HoldsTheSameWeights) {
  const TempDir dir;
  write_gguf(tiny_model(Architecture::kLlama), dir.path("in.gguf"), GGML_TYPE_Q8_0);
  write_f32_copy(dir.path("in.gguf"), dir.path("out.gguf"));
  const Model in = load_model(dir.path("in.gguf")), out = load_model(dir.path("out.gguf"));
  const auto& a = in.layers[1].wqkv[0];
  const auto& b = out.layers[1].wqkv[0];
  ASSERT_EQ(a.n(), b.n());
  for (size_t r = 0; r < a.n(); ++r) {
    for (size_t c = 0; c < a.k(); ++c) ASSERT_EQ(a.at(r, c), b.at(r, c)) << r << ", " << c;
  }
}

TEST(F32CopyTest, IsMadeOnceForEachInput) {
  const TempDir dir;
  const std::string in = dir.path("in.gguf"), out = dir.path("out.gguf");
  write_gguf(tiny_model(Architecture::kQwen2), in, GGML_TYPE_Q4_0);
  write_f32_copy(in, out);
  const auto old = fs::last_write_time(out) - std::chrono::hours(1);
  fs::last_write_time(out, old);
  write_f32_copy(in, out);
  EXPECT_EQ(fs::last_write_time(out), old);
  fs::last_write_time(in, fs::last_write_time(in) + std::chrono::seconds(5));
  write_f32_copy(in, out);
  EXPECT_GT(fs::last_write_time(out), old);
  for (const auto& entry : fs::directory_iterator(dir.path())) {
    EXPECT_THAT(entry.path().filename().string(),
                testing::AnyOf("in.gguf", "out.gguf", "out.gguf.source"));
  }
}

TEST(F32CopyTest, BadInputOrPlaceIsAnError) {
  const TempDir dir;
  EXPECT_THROW(write_f32_copy(dir.path("none.gguf"), dir.path("out.gguf")), ModelError);
  write_gguf(tiny_model(Architecture::kLlama), dir.path("in.gguf"));
  EXPECT_THROW(write_f32_copy(dir.path("in.gguf"), dir.path("no/such/folder/out.gguf")),
               ModelError);
}

}  // namespace
}  // namespace varve::light
