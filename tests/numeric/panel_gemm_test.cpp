#include "kernels/panel_gemm.h"

#include <algorithm>
#include <cmath>

#include "kernels/number.h"
#include "tests/numeric/support.h"

namespace varve::kernels {
namespace {

constexpr float kUntouched = 12345.0f;

struct Scene {
  Scene(size_t m_, size_t n_, size_t k_) : m(m_), n(n_), k(k_), w(WeightFormat::kBf16, n, k) {
    w.pack_bf16(0, n, random_floats(n * k, 1).data());
    x_stride = k + 5;
    y_stride = n + 7;
    const auto values = random_floats(m * x_stride, 2);
    for (const float value : values) x.push_back(bf16_from_f32(value));
    start = random_floats(m * y_stride, 3);
  }

  // Largest difference between cpu and ref, relative to the sum of absolute products; -1 when
  // something outside was written.
  double difference(size_t n0, size_t n1, bool accumulate) const {
    std::vector<float> fast = start, right = start;
    for (size_t i = 0; i < m; ++i) {
      for (size_t c = n1 - n0; c < y_stride; ++c) fast[i * y_stride + c] = kUntouched;
    }
    cpu::panel_gemm(w, x.data(), m, x_stride, fast.data(), y_stride, n0, n1, accumulate);
    ref::panel_gemm(w, x.data(), m, x_stride, right.data(), y_stride, n0, n1, accumulate);
    double worst = 0;
    for (size_t i = 0; i < m; ++i) {
      for (size_t c = 0; c < y_stride; ++c) {
        const size_t at = i * y_stride + c;
        if (c >= n1 - n0 && fast[at] != kUntouched) return -1;
        if (c < n1 - n0)
          worst = std::max(worst, std::abs(static_cast<double>(fast[at]) - right[at]));
      }
    }
    return worst / static_cast<double>(k);
  }

  size_t m, n, k, x_stride, y_stride;
  PackedWeights w;
  std::vector<uint16_t> x;
  std::vector<float> start;
};

TEST(PanelGemmTest, EqualsTheDefinition) {
  for (const size_t m : {1u, 2u, 5u, 11u, 12u, 13u, 24u, 37u, 72u}) {
    for (const size_t n : {1u, 15u, 16u, 17u, 32u, 67u}) {
      for (const size_t k : {2u, 33u, 576u, 1534u}) {
        const Scene scene(m, n, k);
        for (const bool accumulate : {false, true}) {
          const double difference = scene.difference(0, n, accumulate);
          EXPECT_GE(difference, 0) << m << ' ' << n << ' ' << k;
          EXPECT_LT(difference, 2e-6) << m << ' ' << n << ' ' << k;
        }
      }
    }
  }
}

TEST(PanelGemmTest, SharesOfTheRowsOfW) {
  const Scene scene(9, 131, 96);
  for (const auto& [n0, n1] :
       {std::pair<size_t, size_t>{0, 16}, {16, 64}, {32, 131}, {48, 64}, {128, 131}, {16, 16}}) {
    EXPECT_GE(scene.difference(n0, n1, false), 0) << n0;
    EXPECT_LT(scene.difference(n0, n1, false), 2e-6) << n0;
  }
}

TEST(PanelGemmTest, NoRowsAreNoWork) {
  const Scene scene(1, 16, 32);
  cpu::panel_gemm(scene.w, nullptr, 0, 0, nullptr, 0, 0, 16, false);
}

}  // namespace
}  // namespace varve::kernels
