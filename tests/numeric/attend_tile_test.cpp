// attend_tile against ref::attend: every way of computing, every page format, odd shapes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/attend.h"
#include "kernels/cpu/attend_tile_steps.h"
#include "kernels/cpu_target.h"

namespace varve::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Values and logits are about 1. In f32 the difference is the rounding of sums of some hundred
// terms. In bf16 each of query, key, probability and value is off by up to 2^-9: a row with a few
// keys shows that, the errors of many keys average out, but for the query's.
constexpr float kOutputF32 = 1e-5f, kLseF32 = 1e-5f;
constexpr float kOutputBf16 = 1e-2f, kLseBf16 = 4e-3f;
constexpr float kOutputManyKeysBf16 = 1e-3f, kLseManyKeysBf16 = 2e-3f;

struct Shape {
  uint32_t head_dim = 64, rotary_dim = 64, n_queries = 128, group = 3, offset = 0;
};

class Scene {
 public:
  explicit Scene(const Shape& shape, uint32_t seed = 1)
      : shape_(shape), scale_(1.0f / std::sqrt(static_cast<float>(shape.head_dim))), random_(seed) {
    fill_rope();
    rope_ = {cos_.data(), sin_.data(), coarse_cos_.data(), coarse_sin_.data(),
             kFine,       kCoarse,     shape.head_dim,     shape.rotary_dim};
    q_ = normal(shape.n_queries * q_stride());
  }

  void add(KvFormat format, int32_t distance, uint32_t live = ~0u, float log_weight = 0) {
    const size_t dim = shape_.head_dim;
    const std::vector<float> k = normal(kBlockTokens * dim), v = normal(kBlockTokens * dim);
    // One spare byte in front: pages need no alignment beyond 8, so place them at 8 modulo 16.
    bytes_.emplace_back(8 + index_bytes(dim) + body_bytes(format, dim));
    uint8_t* index = bytes_.back().data() + 8;
    ref::make_index(k.data(), live, dim, index);
    ref::encode(format, k.data(), v.data(), dim, index, index + index_bytes(dim));
    pages_.push_back(
        {index, index + index_bytes(dim), nullptr, live, format, distance, log_weight});
  }

  void add_summary(int32_t distance, size_t n_used) {
    add(KvFormat::kBf16, distance, ~0u, 0.3f);
    biases_.emplace_back(kBlockTokens, -kInfinity);
    for (size_t t = 0; t < n_used; ++t) biases_.back()[t] = 0.25f * static_cast<float>(t);
    pages_.back().bias = biases_.back().data();
  }

  KvPage& last_page() { return pages_.back(); }

  QueryTile tile(Compute compute) const {
    return {q_.data(),     q_stride(), shape_.n_queries, shape_.group,
            shape_.offset, scale_,     compute,          &rope_};
  }

  void set_scale(float scale) { scale_ = scale; }

  struct Result {
    std::vector<float> o, lse;
  };

  template <typename Attend>
  Result run(Compute compute, Attend attend) const {
    Result r{std::vector<float>(shape_.n_queries * o_stride(), kUntouched),
             std::vector<float>(shape_.n_queries * lse_stride(), kUntouched)};
    attend(tile(compute), pages_.data(), pages_.size(), r.o.data(), o_stride(), r.lse.data(),
           lse_stride());
    return r;
  }

  // Compares element by element; strides leave a gap that must stay untouched.
  static void expect_near(const Result& got, const Result& want, float o_bound, float lse_bound) {
    float worst_o = 0, worst_lse = 0;
    for (size_t i = 0; i < want.o.size(); ++i) {
      worst_o = std::max(worst_o, difference(got.o[i], want.o[i]));
    }
    for (size_t i = 0; i < want.lse.size(); ++i) {
      worst_lse = std::max(worst_lse, difference(got.lse[i], want.lse[i]));
    }
    EXPECT_LE(worst_o, o_bound);
    EXPECT_LE(worst_lse, lse_bound);
  }

 private:
  static constexpr uint32_t kFine = 32 + 256, kCoarse = 4096;
  static constexpr float kUntouched = 123.0f;

  static float difference(float a, float b) {
    if (a == b) return 0;
    const float d = std::fabs(a - b);
    return std::isnan(d) ? kInfinity : d;
  }

  size_t q_stride() const { return shape_.group * shape_.head_dim + 5; }
  size_t o_stride() const { return shape_.group * shape_.head_dim + 3; }
  size_t lse_stride() const { return shape_.group + 1; }

  std::vector<float> normal(size_t n) {
    std::normal_distribution<float> gauss;
    std::vector<float> x(n);
    for (float& value : x) value = gauss(random_);
    return x;
  }

  void fill_rope() {
    const size_t half = shape_.rotary_dim / 2;
    const auto fill = [half](uint32_t n, double unit, std::vector<float>& cos,
                             std::vector<float>& sin) {
      cos.resize(n * half);
      sin.resize(n * half);
      for (size_t i = 0; i < n * half; ++i) {
        const double angle =
            unit * static_cast<double>(i / half) *
            std::pow(1e4, -static_cast<double>(i % half) / static_cast<double>(half));
        cos[i] = static_cast<float>(std::cos(angle));
        sin[i] = static_cast<float>(std::sin(angle));
      }
    };
    fill(kFine, 1, cos_, sin_);
    fill(kCoarse, 32, coarse_cos_, coarse_sin_);
  }

  Shape shape_;
  float scale_;
  std::mt19937 random_;
  std::vector<float> cos_, sin_, coarse_cos_, coarse_sin_, q_;
  RopeTable rope_{};
  std::vector<std::vector<uint8_t>> bytes_;
  std::vector<std::vector<float>> biases_;
  std::vector<KvPage> pages_;
};

// A way to compute, forced.
struct Way {
  const char* name;
  const char* target;
  Compute compute;
  const cpu::tile::Steps& (*steps)();
  bool (*available)();
  uint32_t head_dim_step = 8;  // what it supports
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

const Way kWays[] = {
    {"f32_sse2", "sse2", Compute::kF32, cpu::tile::f32_steps, [] { return true; }},
    {"f32_avx2", "avx2", Compute::kF32, cpu::tile::f32_steps, [] { return true; }},
    {"f32_avx512", "avx512", Compute::kF32, cpu::tile::f32_steps, [] { return true; }},
    {"bf16", "best", Compute::kBf16, cpu::tile::bf16_steps,
     [] { return cpu_features().avx512_bf16; }},
    {"matmul", "best", Compute::kBf16, cpu::tile::matmul_steps,
     [] { return cpu_features().avx512_bf16; }, 64},
};

class AttendTile : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (!set_cpu_target(GetParam().target) || !GetParam().available()) {
      GTEST_SKIP() << "this CPU cannot compute " << GetParam().name;
    }
  }
  void TearDown() override { set_cpu_target("best"); }

  static Scene::Result compute(const Scene& scene) {
    return scene.run(GetParam().compute,
                     [](auto&&... args) { cpu::tile::attend_with(GetParam().steps(), args...); });
  }

  static void check(const Scene& scene) {
    const bool f32 = GetParam().compute == Compute::kF32;
    Scene::expect_near(compute(scene), scene.run(GetParam().compute, ref::attend),
                       f32 ? kOutputF32 : kOutputBf16, f32 ? kLseF32 : kLseBf16);
  }
};

// A text: older blocks, then the tile's own.
void add_text(Scene& scene, KvFormat format, int32_t n_older, int32_t n_own) {
  for (int32_t d = n_older; d > -n_own; --d) scene.add(format, d);
}

TEST_P(AttendTile, EveryFormatOverADenseText) {
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kInt8}) {
    SCOPED_TRACE(static_cast<uint32_t>(format));
    Scene scene({.n_queries = 64, .offset = 7});
    add_text(scene, format, 19, 3);
    check(scene);
  }
}

TEST_P(AttendTile, ManyKeys) {
  Scene scene({.n_queries = 48});
  for (int32_t d = 130; d > 1; --d) scene.add(KvFormat::kBf16, d);
  const bool f32 = GetParam().compute == Compute::kF32;
  Scene::expect_near(compute(scene), scene.run(GetParam().compute, ref::attend),
                     f32 ? kOutputF32 : kOutputManyKeysBf16, f32 ? kLseF32 : kLseManyKeysBf16);
}

TEST_P(AttendTile, OddShapes) {
  const Shape shapes[] = {{8, 8, 1, 1, 31},   {24, 16, 5, 2, 3},    {40, 40, 33, 8, 17},
                          {64, 32, 37, 7, 1}, {72, 72, 13, 5, 30},  {80, 60, 9, 4, 0},
                          {96, 96, 20, 6, 9}, {128, 128, 70, 2, 0}, {256, 64, 11, 1, 12}};
  for (const Shape& shape : shapes) {
    if (shape.head_dim % GetParam().head_dim_step != 0) continue;
    for (const KvFormat format : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kInt8}) {
      SCOPED_TRACE(testing::Message()
                   << "head_dim " << shape.head_dim << " rotary " << shape.rotary_dim << " format "
                   << static_cast<uint32_t>(format));
      Scene scene(shape);
      add_text(scene, format, 5, 3);
      check(scene);
    }
  }
}

TEST_P(AttendTile, MixedFormatsWeightsAndDistancesInAnyOrder) {
  Scene scene({.n_queries = 96, .offset = 13});
  scene.add(KvFormat::kInt8, 0, ~0u, 0.5f);
  scene.add(KvFormat::kBf16, 4000, 0x80000001u);
  scene.add(KvFormat::kF32, -2);
  scene.add_summary(700, 32);
  scene.add(KvFormat::kBf16, -1, 0x0000fff0u, -1.5f);
  scene.add_summary(-3, 5);  // a bias is never masked, wherever it lies
  scene.add(KvFormat::kInt8, 3, 0x7fffffffu);
  check(scene);
}

TEST_P(AttendTile, MoreRowsThanABlockAndTheWidestTile) {
  Scene scene({.n_queries = 256, .group = 1, .offset = 31});
  add_text(scene, KvFormat::kBf16, 3, 9);
  check(scene);
}

TEST_P(AttendTile, NothingToAttendTo) {
  const auto expect_empty = [](const Scene& scene) {
    const Scene::Result want = scene.run(GetParam().compute, ref::attend);
    Scene::expect_near(compute(scene), want, 0, 0);
    EXPECT_EQ(want.lse[0], -kInfinity);
  };
  Scene scene({.n_queries = 20});
  expect_empty(scene);
  scene.add(KvFormat::kBf16, 4, 0);
  scene.add(KvFormat::kInt8, -1);
  scene.add_summary(9, 0);
  expect_empty(scene);
}

TEST_P(AttendTile, SomeRowsSeeNothing) {
  Scene scene({.n_queries = 64});
  scene.add(KvFormat::kBf16, 0, 0xfff00000u);
  const Scene::Result got = compute(scene);
  EXPECT_EQ(got.lse[0], -kInfinity);
  EXPECT_EQ(got.o[0], 0.0f);
  EXPECT_GT(got.lse[20 * 4], -kInfinity);
  check(scene);
}

TEST_P(AttendTile, DeadTokensMayHoldAnything) {
  Scene scene({.n_queries = 40});
  scene.add(KvFormat::kF32, 2, 0x0f0f0f0fu);
  auto* body = const_cast<float*>(reinterpret_cast<const float*>(scene.last_page().body));
  for (size_t i = 0; i < 32 * 64; ++i) {
    if (!(0x0f0f0f0fu >> i % 32 & 1)) body[i] = 3e38f;
    if (!(0x0f0f0f0fu >> i / 64 & 1)) body[32 * 64 + i] = -3e38f;
  }
  scene.add(KvFormat::kBf16, 1, 0x00ff00ffu);
  auto* pairs = const_cast<uint16_t*>(reinterpret_cast<const uint16_t*>(scene.last_page().body));
  for (size_t i = 0; i < 32 * 64; ++i) {  // keys [32][32][2], values [16][64][2]
    const size_t key_token = i / 2 % 32, value_token = i / 128 * 2 + i % 2;
    if (!(0x00ff00ffu >> key_token & 1)) pairs[i] = 0x7f7f;
    if (!(0x00ff00ffu >> value_token & 1)) pairs[32 * 64 + i] = 0xff7f;
  }
  check(scene);
}

TEST_P(AttendTile, MaximumThatKeepsRising) {
  Scene scene({.n_queries = 30});
  for (int32_t d = 24; d > 0; --d) {
    scene.add(KvFormat::kF32, d, ~0u, 2.5f * static_cast<float>(24 - d) - 30.0f);
  }
  check(scene);
}

TEST_P(AttendTile, SharpLogits) {
  if (GetParam().compute != Compute::kF32) GTEST_SKIP() << "bf16 keys lose such logits";
  Scene scene({.n_queries = 30});
  scene.set_scale(3.0f);
  add_text(scene, KvFormat::kF32, 20, 1);
  const Scene::Result got = compute(scene);
  Scene::expect_near(got, scene.run(Compute::kF32, ref::attend), 3e-4f, 1e-4f);
}

TEST_P(AttendTile, ManyThreadsOneTileEach) {
  Scene scene({.n_queries = 64});
  add_text(scene, KvFormat::kInt8, 9, 2);
  const Scene::Result want = compute(scene);
  std::vector<Scene::Result> got(4);
  std::vector<std::thread> threads;
  for (Scene::Result& result : got) threads.emplace_back([&] { result = compute(scene); });
  for (std::thread& thread : threads) thread.join();
  for (const Scene::Result& result : got) Scene::expect_near(result, want, 0, 0);
}

// Every choice that attend_tile makes by itself, rotary sizes that only f32 can do included.
TEST(AttendTileChoice, IsRightOnEveryTargetAndCompute) {
  for (const char* target : {"sse2", "avx2", "avx512", "best"}) {
    if (!set_cpu_target(target)) continue;
    for (const uint32_t rotary_dim : {64u, 62u, 0u}) {
      for (const Compute compute : {Compute::kF32, Compute::kBf16}) {
        SCOPED_TRACE(testing::Message() << target << " rotary_dim " << rotary_dim);
        Scene scene({.rotary_dim = rotary_dim, .n_queries = 30, .offset = 5});
        add_text(scene, KvFormat::kBf16, 5, 1);
        const bool f32 = compute == Compute::kF32;
        Scene::expect_near(scene.run(compute, cpu::attend_tile), scene.run(compute, ref::attend),
                           f32 ? kOutputF32 : kOutputBf16, f32 ? kLseF32 : kLseBf16);
      }
    }
  }
  set_cpu_target("best");
}

INSTANTIATE_TEST_SUITE_P(Ways, AttendTile, ::testing::ValuesIn(kWays),
                         [](const auto& way) { return std::string(way.param.name); });

}  // namespace
}  // namespace varve::kernels
