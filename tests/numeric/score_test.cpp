// cpu::score_pages against ref::score_pages, and what the estimates promise.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/attend.h"
#include "kernels/cpu_target.h"
#include "tests/numeric/page_scene.h"

namespace varve::kernels {
namespace {

// Relative to a score. An f32 log mass is a sum of head_dim terms of about 1; the sketch rounds
// queries to 16 bits.
constexpr float kRadiusTolerance = 2e-5f, kSketchTolerance = 3e-4f;

std::vector<float> scores_of(decltype(ref::score_pages)* score, const PageScene& scene, Score how,
                             uint32_t step) {
  std::vector<float> scores(scene.pages().size(), -1.0f);
  score(scene.tile(), scene.pages().data(), scene.pages().size(), how, step, scores.data());
  return scores;
}

void expect_equal_to_ref(const PageScene& scene, Score how, uint32_t step) {
  const std::vector<float> want = scores_of(ref::score_pages, scene, how, step);
  const float tolerance = how == Score::kRadius ? kRadiusTolerance : kSketchTolerance;
  for (const std::string_view target : kTargetNames) {
    if (!set_cpu_target(target)) continue;
    SCOPED_TRACE(target);
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
                            {64, 64, 1, 3},
                            {64, 32, 3, 2},
                            {80, 80, 1, 4},
                            {80, 20, 9, 1},
                            {96, 96, 1, 3},
                            {128, 128, 4, 4},
                            {128, 0, 1, 1},
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

INSTANTIATE_TEST_SUITE_P(Estimates, ScorePages, testing::Values(Score::kRadius, Score::kSketch));

}  // namespace
}  // namespace varve::kernels
