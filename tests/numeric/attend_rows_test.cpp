// cpu::attend_rows against ref::attend: formats, shapes, masks and positions, on every target.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/attend.h"
#include "kernels/cpu_target.h"
#include "tests/numeric/page_scene.h"

namespace varve::kernels {
namespace {

// Values and logits are about 1: the difference is the rounding of f32 sums of some hundred terms.
constexpr float kOutputTolerance = 1e-5f, kLseTolerance = 1e-5f;
constexpr float kUntouched = 12345.0f;

struct Result {
  std::vector<float> o, lse;
  size_t o_stride, lse_stride;
};

template <class Attend>
Result run(const PageScene& scene, Attend attend) {
  const QueryTile& tile = scene.tile();
  Result result{{}, {}, tile.group * scene.head_dim() + 3, tile.group + 1};
  result.o.assign(tile.n_queries * result.o_stride, kUntouched);
  result.lse.assign(tile.n_queries * result.lse_stride, kUntouched);
  attend(tile, scene.pages().data(), scene.pages().size(), result.o.data(), result.o_stride,
         result.lse.data(), result.lse_stride);
  return result;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want, float tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(want[i])) {
      ASSERT_EQ(got[i], want[i]) << "at " << i;
    } else {
      ASSERT_NEAR(got[i], want[i], tolerance * std::max(1.0f, std::fabs(want[i]))) << "at " << i;
    }
  }
}

void expect_equal_to_ref(const PageScene& scene) {
  const Result want = run(scene, ref::attend);
  for (const std::string_view target : kTargetNames) {
    if (!set_cpu_target(target)) continue;
    SCOPED_TRACE(target);
    const Result got = run(scene, cpu::attend_rows);
    expect_near(got.o, want.o, kOutputTolerance);
    expect_near(got.lse, want.lse, kLseTolerance);
  }
  set_cpu_target("best");
}

class AttendRows : public testing::TestWithParam<KvFormat> {};

TEST_P(AttendRows, EqualsRefOverShapes) {
  struct Shape {
    uint32_t head_dim, rotary_dim, n_queries, group;
  };
  for (const Shape shape : {Shape{8, 8, 1, 1},
                            {64, 64, 1, 3},
                            {64, 64, 1, 2},
                            {64, 32, 3, 3},
                            {80, 80, 1, 1},
                            {80, 20, 4, 4},
                            {96, 96, 5, 1},
                            {128, 128, 2, 7},
                            {128, 0, 1, 4},
                            {40, 24, 1, 5}}) {
    for (const size_t n_pages : {1, 2, 7, 33}) {
      SCOPED_TRACE(testing::Message() << "head_dim " << shape.head_dim << ", rows "
                                      << shape.n_queries * shape.group << ", pages " << n_pages);
      PageScene scene(shape.head_dim, shape.rotary_dim, shape.n_queries, shape.group, 20);
      scene.add_pages(n_pages, GetParam());
      expect_equal_to_ref(scene);
    }
  }
}

TEST_P(AttendRows, MasksKeysAfterTheQuery) {
  for (const uint32_t offset : {0u, 1u, 30u, 31u}) {
    SCOPED_TRACE(offset);
    PageScene scene(64, 64, 16, 1, offset);
    for (const int32_t distance : {3, 0, -1, -2}) scene.add_page(GetParam(), distance);
    expect_equal_to_ref(scene);
  }
}

TEST_P(AttendRows, AddsBiasAndLogWeightAndShowsBiasedPagesWhole) {
  PageScene scene(64, 64, 2, 3, 4);
  scene.add_page(GetParam(), 1000).log_weight = -0.7f;
  scene.add_bias(scene.add_page(GetParam(), -1, 0xffff00ffu));
  scene.add_page(GetParam(), 0).log_weight = 0.4f;
  expect_equal_to_ref(scene);
}

TEST_P(AttendRows, KeepsLargeLogitsFinite) {
  PageScene scene(64, 64, 1, 3, 9);
  scene.add_pages(20, GetParam());
  scene.tile().scale = 3.0f;  // logits up to about 80
  const Result want = run(scene, ref::attend);
  const Result got = run(scene, cpu::attend_rows);
  expect_near(got.o, want.o, 10 * kOutputTolerance);  // errors of logits grow with them
  expect_near(got.lse, want.lse, kLseTolerance);
}

INSTANTIATE_TEST_SUITE_P(Formats, AttendRows,
                         testing::Values(KvFormat::kF32, KvFormat::kBf16, KvFormat::kInt8));

TEST(AttendRowsEmpty, GivesZeroAndMinusInfinity) {
  PageScene nothing(64, 64, 2, 3), dead(64, 64, 2, 3), later(64, 64, 2, 3);
  dead.add_page(KvFormat::kInt8, 1, 0).body = nullptr;
  later.add_page(KvFormat::kBf16, -1);
  for (const PageScene* scene : {&nothing, &dead, &later}) {
    for (const Result& result : {run(*scene, cpu::attend_rows), run(*scene, ref::attend)}) {
      for (size_t i = 0; i < 2; ++i) {
        for (size_t c = 0; c < 3 * 64; ++c) ASSERT_EQ(result.o[i * result.o_stride + c], 0.0f);
        for (size_t g = 0; g < 3; ++g) {
          ASSERT_EQ(result.lse[i * result.lse_stride + g], -INFINITY);
        }
      }
    }
  }
}

TEST(AttendRowsEmpty, WritesNothingBetweenTheRows) {
  PageScene scene(64, 64, 2, 3, 5);
  scene.add_pages(3, KvFormat::kInt8);
  const Result result = run(scene, cpu::attend_rows);
  EXPECT_EQ(result.o[3 * 64], kUntouched);
  EXPECT_EQ(result.o[result.o_stride - 1], kUntouched);
  EXPECT_EQ(result.lse[3], kUntouched);
}

}  // namespace
}  // namespace varve::kernels
