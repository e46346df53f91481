#include <limits>

#include "kernels/convert.h"
#include "kernels/merge.h"
#include "kernels/number.h"
#include "kernels/softmax.h"
#include "kernels/swiglu.h"
#include "tests/numeric/support.h"

namespace varve::kernels {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kSiluTolerance = 1e-6f;  // relative, each value
constexpr double kSumTolerance = 2e-6;
constexpr double kBf16Tolerance = 1e-3;  // a different last bit here and there
constexpr size_t kLengths[] = {1, 2, 15, 16, 17, 33, 64, 101, 1000};

TEST(Swiglu, EqualsTheReference) {
  on_every_target([] {
    for (const size_t n : kLengths) {
      const auto gate = random_floats(n, 1, -30.0f, 30.0f), up = random_floats(n, 2, -2.0f, 2.0f);
      std::vector<float> want(n), got(n);
      ref::swiglu(gate.data(), up.data(), want.data(), n);
      cpu::swiglu(gate.data(), up.data(), got.data(), n);
      for (size_t i = 0; i < n; ++i) {
        EXPECT_NEAR(got[i], want[i], std::abs(want[i]) * kSiluTolerance) << "gate " << gate[i];
      }
      std::vector<uint16_t> want16(n), got16(n);
      ref::swiglu_bf16(gate.data(), up.data(), want16.data(), n);
      cpu::swiglu_bf16(gate.data(), up.data(), got16.data(), n);
      for (size_t i = 0; i < n; ++i) {
        want[i] = f32_from_bf16(want16[i]);
        got[i] = f32_from_bf16(got16[i]);
      }
      EXPECT_LE(relative_error(got, want), kBf16Tolerance);
    }
  });
}

TEST(Swiglu, Extremes) {
  on_every_target([] {
    std::vector<float> gate(32, -200.0f), up(32, 3.0f), y(32);
    gate[1] = 200.0f;
    gate[2] = kNan;
    gate[20] = std::numeric_limits<float>::infinity();
    cpu::swiglu(gate.data(), up.data(), y.data(), 32);
    EXPECT_NEAR(y[0], 0.0f, 1e-30f);
    EXPECT_EQ(y[1], 600.0f);
    EXPECT_TRUE(std::isnan(y[2]));
    EXPECT_EQ(y[20], std::numeric_limits<float>::infinity());
  });
}

TEST(Softmax, EqualsTheReference) {
  on_every_target([] {
    for (const size_t n : kLengths) {
      auto want = random_floats(n, 3, -40.0f, 40.0f);
      if (n > 2) want[n / 2] = kEmpty;
      auto got = want;
      const float want_lse = ref::softmax(want.data(), n);
      const float got_lse = cpu::softmax(got.data(), n);
      EXPECT_NEAR(got_lse, want_lse, 1e-5f);
      EXPECT_LE(relative_error(got, want), kSumTolerance);
    }
  });
}

TEST(Softmax, EmptyRowsAndNan) {
  on_every_target([] {
    EXPECT_EQ(cpu::softmax(nullptr, 0), kEmpty);
    std::vector<float> masked(37, kEmpty);
    EXPECT_EQ(cpu::softmax(masked.data(), masked.size()), kEmpty);
    for (const float v : masked) EXPECT_EQ(v, 0.0f);
    for (const size_t at : {3u, 36u}) {
      auto row = random_floats(37, 1);
      row[at] = kNan;
      EXPECT_TRUE(std::isnan(cpu::softmax(row.data(), row.size())));
      EXPECT_TRUE(std::isnan(row[at]));
    }
  });
  EXPECT_EQ(ref::softmax(nullptr, 0), kEmpty);
}

TEST(Merge, EqualsTheWholeSet) {
  on_every_target([] {
    for (const size_t d : {1u, 7u, 64u, 129u}) {
      const auto a = random_floats(d, 1), b = random_floats(d, 2);
      for (const float other_lse : {-90.0f, 0.5f, 300.0f}) {
        std::vector<float> want = a, got = a;
        float want_lse = 1.5f, got_lse = 1.5f;
        ref::merge(want.data(), &want_lse, b.data(), other_lse, d);
        cpu::merge(got.data(), &got_lse, b.data(), other_lse, d);
        EXPECT_LE(relative_error(got, want), kSumTolerance);
        EXPECT_FLOAT_EQ(got_lse, want_lse);
      }
    }
  });
  float o = 1.0f, lse = 0.0f;
  const float other = 4.0f;
  ref::merge(&o, &lse, &other, std::log(2.0f), 1);
  EXPECT_FLOAT_EQ(o, 3.0f);
  EXPECT_FLOAT_EQ(lse, std::log(3.0f));
}

TEST(Merge, EmptySets) {
  for (const auto merge : {&ref::merge, &cpu::merge}) {
    float o[2] = {kNan, kNan}, lse = kEmpty;
    const float other[2] = {1.0f, 2.0f};
    merge(o, &lse, nullptr, kEmpty, 2);
    EXPECT_EQ(lse, kEmpty);
    merge(o, &lse, other, 0.25f, 2);
    EXPECT_EQ(o[1], 2.0f);
    EXPECT_EQ(lse, 0.25f);
    merge(o, &lse, nullptr, kEmpty, 2);
    EXPECT_EQ(o[0], 1.0f);
    EXPECT_EQ(lse, 0.25f);
  }
}

TEST(Convert, Bf16BitForBit) {
  std::vector<float> x = random_floats(1000, 5, -1e3f, 1e3f);
  x[3] = kNan;
  x[4] = -std::numeric_limits<float>::infinity();
  x[5] = f32_from_bits(0x3f808000);  // half way, to even: down
  x[6] = f32_from_bits(0x3f818000);  // half way, to even: up
  x[7] = std::numeric_limits<float>::max();
  x[8] = f32_from_bits(0x7f800001);  // a NaN that truncation would turn into infinity
  std::vector<uint16_t> want(x.size());
  ref::bf16_from_f32(x.data(), want.data(), x.size());
  EXPECT_EQ(want[5], 0x3f80);
  EXPECT_EQ(want[6], 0x3f82);
  on_every_target([&] {
    std::vector<uint16_t> got(x.size());
    cpu::bf16_from_f32(x.data(), got.data(), x.size());
    EXPECT_EQ(got, want);
    std::vector<float> back(x.size()), want_back(x.size());
    cpu::f32_from_bf16(got.data(), back.data(), back.size());
    ref::f32_from_bf16(got.data(), want_back.data(), back.size());
    for (size_t i = 0; i < back.size(); ++i) {
      EXPECT_EQ(bits_from_f32(back[i]), bits_from_f32(want_back[i]));
    }
  });
}

TEST(Number, EveryF16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f32_from_f16(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_EQ(bits & 0x7c00, 0x7c00u);
      EXPECT_NE(bits & 0x3ff, 0u);
      continue;
    }
    EXPECT_EQ(f16_from_f32(value), bits) << value;
  }
  EXPECT_EQ(f32_from_f16(0x3c00), 1.0f);
  EXPECT_EQ(f32_from_f16(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(f16_from_f32(65520.0f), 0x7c00);
  EXPECT_EQ(f16_from_f32(65519.0f), 0x7bff);
  EXPECT_EQ(f16_from_f32(1.0f + 1.0f / 2048.0f), 0x3c00);  // half way, to even
}

}  // namespace
}  // namespace varve::kernels
