#include "kernels/rope.h"

#include "tests/numeric/support.h"

namespace varve::kernels {
namespace {

constexpr double kTolerance = 1e-6;

TEST(RopeRows, EqualsTheReferenceOverOddShapes) {
  on_every_target([] {
    for (const size_t head_dim : {2u, 6u, 64u, 66u, 128u}) {
      for (const size_t rotary_dim : {size_t{2}, head_dim / 4 * 2, head_dim}) {
        const auto cos = random_floats(rotary_dim / 2 + 1, 1), sin = random_floats(rotary_dim, 2);
        auto want = random_floats(3 * head_dim, 3);
        auto got = want;
        ref::rope_rows(want.data(), 3, head_dim, rotary_dim, cos.data(), sin.data());
        cpu::rope_rows(got.data(), 3, head_dim, rotary_dim, cos.data(), sin.data());
        EXPECT_LE(relative_error(got, want), kTolerance) << head_dim << " " << rotary_dim;
      }
    }
  });
}

TEST(RopeRows, TwoStepsAreOne) {
  RopeOptions options;
  options.rotary_dim = 64;
  std::vector<double> frequencies(32);
  EXPECT_EQ(rope_frequencies(options, frequencies.data()), 1.0);
  EXPECT_EQ(frequencies[0], 1.0);
  EXPECT_NEAR(frequencies[16], 0.01, 1e-12);
  std::vector<float> cos(40 * 32), sin(40 * 32), coarse_cos(2 * 32), coarse_sin(2 * 32);
  rope_table(frequencies.data(), 64, 1, 40, cos.data(), sin.data());
  rope_table(frequencies.data(), 64, 32, 2, coarse_cos.data(), coarse_sin.data());
  const auto start = random_floats(64, 1);
  auto once = start, twice = start;
  ref::rope_rows(once.data(), 1, 64, 64, &cos[37 * 32], &sin[37 * 32]);
  ref::rope_rows(twice.data(), 1, 64, 64, &coarse_cos[32], &coarse_sin[32]);
  ref::rope_rows(twice.data(), 1, 64, 64, &cos[5 * 32], &sin[5 * 32]);
  EXPECT_LE(relative_error(twice, once), kTolerance);
  EXPECT_GT(relative_error(once, start), 0.1);
}

TEST(RopeFrequencies, LinearScaleAndFactors) {
  const std::vector<float> factors = {1.0f, 2.0f, 4.0f, 8.0f};
  RopeOptions options;
  options.rotary_dim = 8;
  options.base = 10000;
  options.freq_scale = 0.25;
  options.freq_factors = factors.data();
  std::vector<double> f(4);
  rope_frequencies(options, f.data());
  EXPECT_NEAR(f[0], 0.25, 1e-12);
  EXPECT_NEAR(f[1], 0.1 * 0.25 / 2, 1e-12);
  EXPECT_NEAR(f[3], 0.001 * 0.25 / 8, 1e-12);
}

TEST(RopeFrequencies, YarnKeepsFastPairsAndScalesSlowOnes) {
  RopeOptions options;
  options.rotary_dim = 64;
  options.freq_scale = 0.25;
  options.yarn_ext_factor = 1.0;
  options.yarn_trained_length = 8192;
  std::vector<double> f(32);
  EXPECT_NEAR(rope_frequencies(options, f.data()), 1.0 + 0.1 * std::log(4.0), 1e-12);
  EXPECT_EQ(f[0], 1.0);
  // corr(32) = 64 ln(8192 / (64 pi)) / (2 ln 10000) = 12.88, corr(1) = 24.92: pairs 12 to 25 are
  // mixed.
  const auto plain = [](size_t i) { return std::pow(10000.0, -static_cast<double>(i) / 32.0); };
  EXPECT_NEAR(f[12] / plain(12), 1.0, 1e-12);
  EXPECT_NEAR(f[13] / plain(13), 1.0 - 0.75 / 13.0, 1e-12);
  EXPECT_NEAR(f[25] / plain(25), 0.25, 1e-12);
  EXPECT_NEAR(f[31] / plain(31), 0.25, 1e-12);
}

TEST(RopeFrequencies, Llama3Factors) {
  std::vector<float> factors(64);
  llama3_freq_factors(500000.0, 128, 8.0, 1.0, 4.0, 8192.0, factors.data());
  EXPECT_EQ(factors[0], 1.0f);
  EXPECT_EQ(factors[63], 8.0f);
  for (size_t i = 0; i < 64; ++i) {
    const double turns = 8192.0 * std::pow(500000.0, -2.0 * static_cast<double>(i) / 128.0) /
                         (2.0 * 3.14159265358979323846);
    const double smooth = (turns - 1.0) / 3.0;
    const double want = turns > 4.0 ? 1.0 : turns < 1.0 ? 8.0 : 1.0 / ((1 - smooth) / 8 + smooth);
    EXPECT_NEAR(factors[i], want, 1e-5) << i;
  }
}

}  // namespace
}  // namespace varve::kernels
