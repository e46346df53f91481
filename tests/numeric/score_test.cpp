// cpu::score_pages against ref::score_pages, and what the estimates promise.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/attend.h"
#include "kernels/cpu_target.h"
#include "kernels/top_k.h"
#include "tests/numeric/page_scene.h"

namespace varve::kernels {
namespace {

// Relative to a score. An f32 log mass is a sum of head_dim terms of about 1; the sketch rounds
// queries to 16 bits, with AVX512_VNNI to 8 bits.
constexpr float kRadiusTolerance = 2e-5f, kSketchTolerance = 3e-4f, kByteSketchTolerance = 1e-2f;

float tolerance_of(Score how) {
  if (how == Score::kRadius) return kRadiusTolerance;
  return cpu_target() == CpuTarget::kAvx512Vnni ? kByteSketchTolerance : kSketchTolerance;
}

std::vector<float> scores_of(decltype(ref::score_pages)* score, const PageScene& scene, Score how,
                             uint32_t step) {
  std::vector<float> scores(scene.pages().size(), -1.0f);
  score(scene.tile(), scene.pages().data(), scene.pages().size(), how, step, scores.data());
  return scores;
}

void expect_equal_to_ref(const PageScene& scene, Score how, uint32_t step) {
  const std::vector<float> want = scores_of(ref::score_pages, scene, how, step);
  for (const std::string_view target : kTargetNames) {
    if (!set_cpu_target(target)) continue;
    SCOPED_TRACE(target);
    const float tolerance = tolerance_of(how);
    const std::vector<float> got = scores_of(cpu::score_pages, scene, how, step);
    for (size_t p = 0; p < want.size(); ++p) {
      ASSERT_NEAR(got[p], want[p], tolerance * std::max(want[p], 1e-3f)) << "page " << p;
    }
  }
  set_cpu_target("best");
}

class ScorePages : public testing::TestWithParam<Score> {};

TEST_P(ScorePages, EqualsRefOverShapes) {
  struct Shape {
    uint32_t head_dim, rotary_dim, n_queries, group;
  };
  for (const Shape shape : {Shape{8, 8, 1, 1},
                            {32, 32, 2, 1},
                            {64, 64, 1, 3},
                            {64, 64, 8, 3},
                            {64, 32, 3, 2},
                            {80, 80, 1, 4},
                            {80, 20, 9, 1},
                            {96, 96, 1, 3},
                            {128, 128, 4, 4},
                            {128, 0, 1, 1},
                            {160, 160, 1, 2},
                            {256, 256, 1, 2},
                            {40, 24, 1, 5}}) {
    for (const size_t n_pages : {0, 1, 2, 7, 33, 130}) {
      SCOPED_TRACE(testing::Message() << "head_dim " << shape.head_dim << ", rows "
                                      << shape.n_queries * shape.group << ", pages " << n_pages);
      PageScene scene(shape.head_dim, shape.rotary_dim, shape.n_queries, shape.group, 11);
      scene.add_pages(n_pages, KvFormat::kBf16);
      expect_equal_to_ref(scene, GetParam(), 1);
    }
  }
}

TEST_P(ScorePages, UsesEveryStepthQuery) {
  for (const uint32_t step : {2u, 4u, 100u}) {
    PageScene scene(64, 64, 9, 3, 1);
    scene.add_pages(20, KvFormat::kInt8);
    expect_equal_to_ref(scene, GetParam(), step);
    const std::vector<float> scores = scores_of(cpu::score_pages, scene, GetParam(), step);
    const float rows = 3.0f * static_cast<float>((9 + step - 1) / step);
    EXPECT_NEAR(std::accumulate(scores.begin(), scores.end(), 0.0f), rows, 1e-4f);
  }
}

TEST_P(ScorePages, TakesDistancesOfBothSignsAndLogWeights) {
  PageScene scene(64, 64, 1, 3, 31);
  for (const int32_t distance : {2000, 40, 1, 0, -1, -3}) {
    scene.add_page(KvFormat::kBf16, distance).log_weight = 0.1f * static_cast<float>(distance % 7);
  }
  expect_equal_to_ref(scene, GetParam(), 1);
}

TEST_P(ScorePages, DeadPagesGetNothing) {
  PageScene scene(64, 64, 1, 3);
  scene.add_page(KvFormat::kBf16, 1, 0);
  EXPECT_EQ(scores_of(cpu::score_pages, scene, GetParam(), 1), std::vector<float>{0.0f});
  scene.add_page(KvFormat::kBf16, 0);
  const std::vector<float> scores = scores_of(cpu::score_pages, scene, GetParam(), 1);
  EXPECT_EQ(scores[0], 0.0f);
  EXPECT_NEAR(scores[1], 3.0f, 1e-6f);
}

TEST_P(ScorePages, ReadsTheIndexAlone) {
  PageScene scene(64, 64, 1, 3);
  scene.add_page(KvFormat::kBf16, 1).body = nullptr;
  scene.add_page(KvFormat::kInt8, 0).body = nullptr;
  expect_equal_to_ref(scene, GetParam(), 1);
}

TEST_P(ScorePages, EqualKeysShareEqually) {
  PageScene scene(64, 64, 1, 3);
  const std::vector<float> k(kBlockTokens * 64, 1.5f);
  std::vector<uint8_t> index(index_bytes(64));
  ref::make_index(k.data(), ~0u, 64, index.data());
  const KvPage page{index.data(), nullptr, nullptr, ~0u, KvFormat::kInt8, 2, 0.0f};
  const std::vector<KvPage> pages(10, page);
  std::vector<float> scores(pages.size());
  for (const std::string_view target : kTargetNames) {
    if (!set_cpu_target(target)) continue;
    SCOPED_TRACE(target);
    cpu::score_pages(scene.tile(), pages.data(), pages.size(), GetParam(), 1, scores.data());
    for (const float score : scores) EXPECT_NEAR(score, 0.3f, 1e-6f);
  }
  set_cpu_target("best");
}

TEST_P(ScorePages, StaysFiniteForAnySizeOfQueries) {
  for (const float scale : {0.0f, 1e-38f, 1e-30f, 1e10f, 1e30f}) {
    PageScene scene(64, 64, 2, 3);
    scene.add_pages(20, KvFormat::kInt8);
    scene.tile().scale = scale;
    for (const std::string_view target : kTargetNames) {
      if (!set_cpu_target(target)) continue;
      SCOPED_TRACE(testing::Message() << target << ", scale " << scale);
      const std::vector<float> scores = scores_of(cpu::score_pages, scene, GetParam(), 1);
      EXPECT_NEAR(std::accumulate(scores.begin(), scores.end(), 0.0f), 6.0f, 1e-4f);
    }
    set_cpu_target("best");
  }
}

// Keys as models make them: pages that differ, and two channels far larger than the others.
TEST_P(ScorePages, ChoosesThePagesThatRefChooses) {
  constexpr size_t kPages = 256, kKept = 32;
  PageScene scene(64, 64, 1, 3);
  std::vector<std::vector<uint8_t>> indexes;
  std::vector<KvPage> pages;
  for (size_t p = 0; p < kPages; ++p) {
    std::vector<float> k = scene.normal(kBlockTokens * 64);
    const std::vector<float> shift = scene.normal(64);
    for (size_t i = 0; i < k.size(); ++i) k[i] = (k[i] + shift[i % 64]) * (i % 64 < 2 ? 12 : 2);
    indexes.emplace_back(index_bytes(64));
    ref::make_index(k.data(), ~0u, 64, indexes.back().data());
    const auto distance = static_cast<int32_t>(kPages - p);
    pages.push_back({indexes.back().data(), nullptr, nullptr, ~0u, KvFormat::kInt8, distance, 0});
  }
  std::vector<float> want(kPages), got(kPages);
  ref::score_pages(scene.tile(), pages.data(), kPages, GetParam(), 1, want.data());
  const auto kept_mass = [&](const std::vector<float>& scores) {
    std::vector<uint32_t> chosen(kKept);
    ref::top_k(scores.data(), kPages, kKept, chosen.data());
    float mass = 0;
    for (const uint32_t p : chosen) mass += want[p];
    return mass;
  };
  for (const std::string_view target : kTargetNames) {
    if (!set_cpu_target(target)) continue;
    SCOPED_TRACE(target);
    cpu::score_pages(scene.tile(), pages.data(), kPages, GetParam(), 1, got.data());
    EXPECT_GT(kept_mass(got), 0.9999f * kept_mass(want));
  }
  set_cpu_target("best");
}

INSTANTIATE_TEST_SUITE_P(Estimates, ScorePages, testing::Values(Score::kRadius, Score::kSketch));

}  // namespace
}  // namespace varve::kernels
