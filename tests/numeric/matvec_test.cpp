#include "kernels/matvec.h"

#include <limits>
#include <memory>
#include <stdexcept>

#include "kernels/number.h"
#include "kernels/unpack.h"
#include "tests/numeric/support.h"

namespace varve::kernels {
namespace {

constexpr double kF32Tolerance = 2e-6;    // sums in f32
constexpr double kInt16Tolerance = 5e-5;  // x rounded to 16 bits per group of 32
constexpr float kUntouched = 12345.0f;

struct Case {
  WeightFormat format;
  size_t n, k, group;
  bool has_min;
};

PackedWeights random_weights(const Case& c, uint32_t seed) {
  PackedWeights w(c.format, c.n, c.k, c.group, c.has_min);
  std::mt19937 generator(seed);
  const size_t groups = c.k / c.group;
  const auto scale = random_floats(c.n * groups, seed + 1, 0.001f, 0.02f);
  const auto min = random_floats(c.n * groups, seed + 2, -0.2f, 0.0f);
  std::vector<uint8_t> codes(c.n * c.k);
  for (uint8_t& code : codes) code = static_cast<uint8_t>(generator());
  const auto values = random_floats(c.n * c.k, seed + 3);
  switch (c.format) {
    case WeightFormat::kW4:
      for (uint8_t& code : codes) code &= 15;
      w.pack_w4(0, c.n, codes.data(), scale.data(), min.data());
      break;
    case WeightFormat::kW8:
      w.pack_w8(0, c.n, reinterpret_cast<const int8_t*>(codes.data()), scale.data(),
                c.has_min ? min.data() : nullptr);
      break;
    case WeightFormat::kBf16:
      w.pack_bf16(0, c.n, values.data());
      break;
    case WeightFormat::kF32:
      w.pack_f32(0, c.n, values.data());
      break;
  }
  return w;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const size_t n : {1u, 16u, 17u, 67u}) {
    for (const size_t k : {32u, 96u, 576u}) {
      all.push_back({WeightFormat::kW4, n, k, 32, false});
      for (const bool has_min : {false, true}) {
        all.push_back({WeightFormat::kW8, n, k, 32, has_min});
        all.push_back({WeightFormat::kW8, n, k, 16, has_min});
      }
    }
    for (const size_t k : {1u, 2u, 33u, 127u, 1536u}) {
      all.push_back({WeightFormat::kBf16, n, k, 32, false});
      all.push_back({WeightFormat::kF32, n, k, 32, false});
    }
  }
  return all;
}

double row_norm(const PackedWeights& w, size_t row) {
  double sum = 0;
  for (size_t c = 0; c < w.k(); ++c) sum += std::pow(static_cast<double>(w.at(row, c)), 2);
  return std::sqrt(sum);
}

double norm(const float* x, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += std::pow(static_cast<double>(x[i]), 2);
  return std::sqrt(sum);
}

double tolerance(const PackedWeights& w) {
  const bool is_coded = w.format() == WeightFormat::kW4 || w.format() == WeightFormat::kW8;
  return is_coded && cpu_target() == CpuTarget::kAvx512Vnni ? kInt16Tolerance : kF32Tolerance;
}

// Errors are judged against |w| |x|: the product itself may cancel to nothing. Vectors are exactly
// as long as the contract says, so that a read or write beyond it is a heap error under ASan.
void check_product(const PackedWeights& w, size_t m) {
  const size_t x_stride = w.k() + 3, y_stride = w.n() + 5;
  const auto x = random_floats((m - 1) * x_stride + w.k(), static_cast<uint32_t>(m));
  std::vector<float> want((m - 1) * y_stride + w.n(), kUntouched), got = want;
  ref::matvec(w, x.data(), m, x_stride, want.data(), y_stride, 0, w.n());
  cpu::matvec(w, x.data(), m, x_stride, got.data(), y_stride, 0, w.n());
  for (size_t i = 0; i + 1 < m; ++i) {
    for (size_t j = w.n(); j < y_stride; ++j) ASSERT_EQ(got[i * y_stride + j], kUntouched);
  }
  for (size_t j = 0; j < w.n(); ++j) {
    const double row = row_norm(w, j) * tolerance(w);
    for (size_t i = 0; i < m; ++i) {
      ASSERT_NEAR(got[i * y_stride + j], want[i * y_stride + j],
                  row * norm(&x[i * x_stride], w.k()))
          << "format " << static_cast<int>(w.format()) << " n " << w.n() << " k " << w.k()
          << " group " << w.group() << " min " << w.has_min() << " m " << m << " at " << i << " "
          << j;
    }
  }
}

TEST(Matvec, EqualsTheReferenceOverOddShapes) {
  for (const Case& c : cases()) {
    const PackedWeights w = random_weights(c, 7);
    on_every_target([&] {
      for (const size_t m : {1u, 2u, 3u, 4u, 7u, 16u}) check_product(w, m);
    });
  }
}

TEST(Matvec, WritesOnlyTheRowsAskedFor) {
  const PackedWeights w = random_weights({WeightFormat::kW4, 80, 64, 32, false}, 3);
  const auto x = random_floats(64, 1);
  std::vector<float> want(80);
  ref::matvec(w, x.data(), 1, 64, want.data(), 80, 0, 80);
  on_every_target([&] {
    std::vector<float> got(80, kUntouched);
    cpu::matvec(w, x.data(), 1, 64, got.data(), 80, 16, 48);
    for (size_t i = 0; i < 80; ++i) {
      if (i < 16 || i >= 48) {
        EXPECT_EQ(got[i], kUntouched) << i;
      } else {
        EXPECT_NEAR(got[i], want[i], 1e-3) << i;
      }
    }
  });
}

// One channel a thousand times the others, as real activations have it.
TEST(Matvec, SurvivesOutlierChannels) {
  const PackedWeights w = random_weights({WeightFormat::kW8, 48, 576, 32, false}, 5);
  auto x = random_floats(576, 9);
  x[100] = 1000.0f;
  x[101] = -900.0f;
  std::vector<float> want(48), got(48);
  ref::matvec(w, x.data(), 1, 576, want.data(), 48, 0, 48);
  on_every_target([&] {
    cpu::matvec(w, x.data(), 1, 576, got.data(), 48, 0, 48);
    EXPECT_LE(relative_error(got, want), tolerance(w));
  });
}

TEST(Matvec, ShowsNanAndInfinity) {
  for (const WeightFormat format : {WeightFormat::kW4, WeightFormat::kW8, WeightFormat::kF32}) {
    const PackedWeights w = random_weights({format, 16, 64, 32, false}, 5);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      auto x = random_floats(64, 9);
      x[40] = bad;
      on_every_target([&] {
        std::vector<float> y(16);
        cpu::matvec(w, x.data(), 1, 64, y.data(), 16, 0, 16);
        for (const float v : y) EXPECT_FALSE(std::isfinite(v));
      });
    }
  }
}

TEST(Matvec, ZeroInputGivesZero) {
  const PackedWeights w = random_weights({WeightFormat::kW4, 16, 64, 32, false}, 5);
  const std::vector<float> x(64, 0.0f);
  on_every_target([&] {
    std::vector<float> y(16, kUntouched);
    cpu::matvec(w, x.data(), 1, 64, y.data(), 16, 0, 16);
    for (const float v : y) EXPECT_EQ(v, 0.0f);
  });
}

TEST(Unpack, EqualsTheReferenceForAnyRange) {
  for (const Case& c : cases()) {
    const PackedWeights w = random_weights(c, 11);
    on_every_target([&] {
      for (const size_t n0 : {size_t{0}, c.n / 2, c.n - 1}) {
        const size_t rows = c.n - n0, stride = c.k + 1;
        std::vector<float> want((rows - 1) * stride + c.k), got(want.size());
        std::vector<uint16_t> want16(want.size()), got16(want.size());
        ref::unpack_rows_f32(w, n0, c.n, want.data(), stride);
        cpu::unpack_rows_f32(w, n0, c.n, got.data(), stride);
        EXPECT_LE(relative_error(got, want), 1e-6) << c.n << " x " << c.k;
        ref::unpack_rows_bf16(w, n0, c.n, want16.data(), stride);
        cpu::unpack_rows_bf16(w, n0, c.n, got16.data(), stride);
        for (size_t i = 0; i < want.size(); ++i) {
          want[i] = f32_from_bf16(want16[i]);
          got[i] = f32_from_bf16(got16[i]);
        }
        EXPECT_LE(relative_error(got, want), 1e-4) << c.n << " x " << c.k;
      }
    });
  }
}

TEST(PackedWeights, HoldsWhatWasPacked) {
  PackedWeights w(WeightFormat::kW4, 3, 32);
  std::vector<uint8_t> codes(3 * 32);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 7 % 16);
  const std::vector<float> scale = {0.5f, 0.25f, 2.0f}, min = {-1.0f, 3.0f, 0.0f};
  w.pack_w4(0, 3, codes.data(), scale.data(), min.data());
  for (size_t r = 0; r < 3; ++r) {
    for (size_t c = 0; c < 32; ++c) {
      EXPECT_EQ(w.at(r, c), scale[r] * static_cast<float>(codes[r * 32 + c]) + min[r]);
    }
  }
  EXPECT_EQ(w.bytes(), 16u * 32u / 2u + 64u);
}

TEST(PackedWeights, RefusesWhatItCannotHold) {
  EXPECT_THROW(PackedWeights(WeightFormat::kW4, 16, 33), std::invalid_argument);
  EXPECT_THROW(PackedWeights(WeightFormat::kW4, 16, 64, 16), std::invalid_argument);
  EXPECT_THROW(PackedWeights(WeightFormat::kW8, 16, 64, 8), std::invalid_argument);
  EXPECT_THROW(PackedWeights(WeightFormat::kF32, SIZE_MAX, 64), std::length_error);
  EXPECT_THROW(PackedWeights(WeightFormat::kF32, 16, SIZE_MAX / 8), std::length_error);
  EXPECT_THROW(PackedWeights(WeightFormat::kW8, SIZE_MAX / 64, 4096), std::length_error);
  PackedWeights w(WeightFormat::kF32, 4, 4);
  const std::vector<float> row(4);
  EXPECT_THROW(w.pack_f32(4, 1, row.data()), std::out_of_range);
  EXPECT_THROW(w.pack_bf16(0, 1, row.data()), std::invalid_argument);
}

}  // namespace
}  // namespace varve::kernels
