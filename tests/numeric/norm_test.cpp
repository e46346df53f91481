#include "kernels/norm.h"

#include "kernels/number.h"
#include "tests/numeric/support.h"

namespace varve::kernels {
namespace {

constexpr double kTolerance = 1e-6;
constexpr double kBf16Tolerance = 1e-3;  // a different last bit here and there

TEST(RmsNorm, EqualsTheReferenceOverOddLengths) {
  on_every_target([] {
    for (const size_t n : {1u, 3u, 16u, 31u, 64u, 101u, 576u, 1536u}) {
      const auto x = random_floats(n, 1, -3.0f, 3.0f), w = random_floats(n, 2, 0.5f, 1.5f);
      std::vector<float> want(n), got(n);
      ref::rms_norm(x.data(), w.data(), 1e-5f, want.data(), n);
      cpu::rms_norm(x.data(), w.data(), 1e-5f, got.data(), n);
      EXPECT_LE(relative_error(got, want), kTolerance) << n;

      std::vector<uint16_t> half(n);
      cpu::rms_norm_bf16(x.data(), w.data(), 1e-5f, half.data(), n);
      for (size_t i = 0; i < n; ++i) {
        got[i] = f32_from_bf16(half[i]);
        want[i] = f32_from_bf16(bf16_from_f32(want[i]));
      }
      EXPECT_LE(relative_error(got, want), kBf16Tolerance) << n;
    }
  });
}

TEST(RmsNorm, InPlaceAndZeroInput) {
  on_every_target([] {
    std::vector<float> x(37, 0.0f);
    const std::vector<float> w(37, 2.0f);
    cpu::rms_norm(x.data(), w.data(), 1e-5f, x.data(), 37);
    for (const float v : x) EXPECT_EQ(v, 0.0f);
  });
}

}  // namespace
}  // namespace varve::kernels
