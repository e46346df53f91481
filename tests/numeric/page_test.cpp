// Page indexes and bodies: cpu writes the bytes that ref writes, and decoding stays within a step.
#include "kernels/page.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu_target.h"
#include "kernels/number.h"
#include "tests/numeric/page_scene.h"

namespace varve::kernels {
namespace {

constexpr size_t kHeadDims[] = {8, 40, 64, 80, 96, 128};
constexpr uint32_t kMasks[] = {~0u, 0u, 1u, 0x80000000u, 0x00ff00f1u};
constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kBf16, KvFormat::kInt8};

// Half a step, and the rounding of the product and sum that decode does.
constexpr float kHalfStep = 0.5f * (1 + 1e-4f);
constexpr float kBf16Relative = 0x1p-8f;

// k or v with outlier channels, a constant channel, tiny channels and a zero channel.
std::vector<float> random_block(size_t head_dim, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(kBlockTokens * head_dim);
  for (size_t t = 0; t < kBlockTokens; ++t) {
    for (size_t c = 0; c < head_dim; ++c) {
      float& value = x[t * head_dim + c];
      value = normal(random);
      if (c % 8 == 1) value += 30;
      if (c % 8 == 2) value -= 300;
      if (c % 8 == 3) value = 0.3f;
      if (c % 8 == 4) value *= 1e-6f;
      if (c % 8 == 5) value *= 1e-10f;
      if (c % 8 == 6) value = 0;
    }
  }
  return x;
}

std::vector<uint8_t> index_of(decltype(ref::make_index)* make, const std::vector<float>& k,
                              uint32_t live_mask, size_t head_dim) {
  std::vector<uint8_t> index(index_bytes(head_dim), 0xee);
  make(k.data(), live_mask, head_dim, index.data());
  return index;
}

float index_f16(const std::vector<uint8_t>& index, size_t i) {
  uint16_t half;
  std::memcpy(&half, index.data() + 2 * i, sizeof half);
  return f32_from_f16(half);
}

TEST(Page, CpuWritesTheBytesOfRef) {
  for (const std::string_view target : kTargetNames) {
    if (!set_cpu_target(target)) continue;
    for (const size_t head_dim : kHeadDims) {
      const std::vector<float> k = random_block(head_dim, 1), v = random_block(head_dim, 2);
      for (const uint32_t mask : kMasks) {
        SCOPED_TRACE(testing::Message() << target << " head_dim " << head_dim << " mask " << mask);
        const auto index = index_of(ref::make_index, k, mask, head_dim);
        ASSERT_EQ(index_of(cpu::make_index, k, mask, head_dim), index);
        for (const KvFormat format : kFormats) {
          std::vector<uint8_t> want(body_bytes(format, head_dim), 0xee), got(want.size(), 0xdd);
          ref::encode(format, k.data(), v.data(), head_dim, index.data(), want.data());
          cpu::encode(format, k.data(), v.data(), head_dim, index.data(), got.data());
          ASSERT_EQ(got, want) << "format " << static_cast<int>(format);
        }
      }
    }
  }
  set_cpu_target("best");
}

TEST(Page, CpuDecodesWhatRefDecodes) {
  for (const std::string_view target : kTargetNames) {
    if (!set_cpu_target(target)) continue;
    for (const size_t head_dim : kHeadDims) {
      const std::vector<float> k = random_block(head_dim, 3), v = random_block(head_dim, 4);
      const auto index = index_of(ref::make_index, k, ~0u, head_dim);
      for (const KvFormat format : kFormats) {
        std::vector<uint8_t> body(body_bytes(format, head_dim));
        ref::encode(format, k.data(), v.data(), head_dim, index.data(), body.data());
        std::vector<float> k0(k.size()), v0(k.size()), k1(k.size()), v1(k.size());
        ref::decode(format, index.data(), body.data(), head_dim, k0.data(), v0.data());
        cpu::decode(format, index.data(), body.data(), head_dim, k1.data(), nullptr);
        cpu::decode(format, index.data(), body.data(), head_dim, nullptr, v1.data());
        for (size_t i = 0; i < k.size(); ++i) {
          ASSERT_FLOAT_EQ(k1[i], k0[i]);
          ASSERT_FLOAT_EQ(v1[i], v0[i]);
        }
      }
    }
  }
  set_cpu_target("best");
}

TEST(Page, F32IsExactAndBf16Rounds) {
  const size_t head_dim = 40;
  const std::vector<float> k = random_block(head_dim, 5), v = random_block(head_dim, 6);
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBf16}) {
    std::vector<uint8_t> body(body_bytes(format, head_dim));
    std::vector<float> k1(k.size()), v1(v.size());
    ref::encode(format, k.data(), v.data(), head_dim, nullptr, body.data());
    ref::decode(format, nullptr, body.data(), head_dim, k1.data(), v1.data());
    const float relative = format == KvFormat::kF32 ? 0.0f : kBf16Relative;
    for (size_t i = 0; i < k.size(); ++i) {
      ASSERT_NEAR(k1[i], k[i], relative * std::fabs(k[i]));
      ASSERT_NEAR(v1[i], v[i], relative * std::fabs(v[i]));
    }
  }
}

TEST(Page, Int8ErrorIsHalfAStep) {
  for (const size_t head_dim : kHeadDims) {
    const std::vector<float> k = random_block(head_dim, 7), v = random_block(head_dim, 8);
    const auto index = index_of(ref::make_index, k, ~0u, head_dim);
    std::vector<uint8_t> body(body_bytes(KvFormat::kInt8, head_dim));
    std::vector<float> k1(k.size()), v1(k.size());
    ref::encode(KvFormat::kInt8, k.data(), v.data(), head_dim, index.data(), body.data());
    ref::decode(KvFormat::kInt8, index.data(), body.data(), head_dim, k1.data(), v1.data());
    for (size_t i = 0; i < k.size(); ++i) {
      const size_t c = i % head_dim, begin = i - c + c / 32 * 32;
      const size_t end = i - c + std::min((c / 32 + 1) * 32, head_dim);
      float largest = 0;
      for (size_t j = begin; j < end; ++j) largest = std::max(largest, std::fabs(v[j]));
      // A constant channel is an f16; a step is at least the smallest f16.
      const float k_step = index_f16(index, head_dim + c);
      const float k_bound = k_step > 0 ? k_step * kHalfStep : std::fabs(k[i]) * 0x1p-11f;
      ASSERT_NEAR(k1[i], k[i], k_bound + std::fabs(k[i]) * 1e-6f) << "channel " << c;
      ASSERT_NEAR(v1[i], v[i], kHalfStep * (largest / 127 * (1 + 0x1p-9f) + 0x1p-24f));
    }
  }
}

TEST(Page, IndexHoldsRangeRadiusAndTopBits) {
  const size_t head_dim = 64;
  const uint32_t mask = 0x00ff00f1u;
  const std::vector<float> k = random_block(head_dim, 9);
  const auto index = index_of(ref::make_index, k, mask, head_dim);
  for (size_t c = 0; c < head_dim; ++c) {
    const float k_min = index_f16(index, c), k_step = index_f16(index, head_dim + c);
    float radius = 0;
    uint64_t top;
    std::memcpy(&top, index.data() + 6 * head_dim + 8 * c, sizeof top);
    for (size_t t = 0; t < kBlockTokens; ++t) {
      if ((mask >> t & 1) == 0) continue;
      const float x = k[t * head_dim + c];
      radius += std::fabs(x - (k_min + 127.5f * k_step)) / std::popcount(mask);
      ASSERT_GE(x, k_min - std::fabs(x) * 0x1p-11f);
      ASSERT_LE(x, (k_min + 255 * k_step) * (1 + 1e-6f) + std::fabs(x) * 0x1p-11f);
      const float code = k_step > 0 ? (x - k_min) / k_step : 0.0f;
      const auto bucket = static_cast<float>(top >> (8 * (t % 8) + 2 * (t / 8)) & 3);
      ASSERT_GE(code, 64 * bucket - 0.51f);
      ASSERT_LE(code, 64 * bucket + 63.51f);
    }
    ASSERT_NEAR(index_f16(index, 2 * head_dim + c), radius, radius * 0x1p-10f + 0x1p-24f);
  }
}

TEST(Page, ConstantChannelHasNoStepAndDeadPageIsZero) {
  const size_t head_dim = 8;
  const std::vector<float> k(kBlockTokens * head_dim, 0.5f);
  const auto index = index_of(cpu::make_index, k, ~0u, head_dim);
  EXPECT_EQ(index_f16(index, 0), 0.5f);
  EXPECT_EQ(index_f16(index, head_dim), 0.0f);
  const auto dead = index_of(cpu::make_index, k, 0, head_dim);
  EXPECT_EQ(dead, std::vector<uint8_t>(index_bytes(head_dim), 0));
}

TEST(Page, NotANumberAndHugeValuesStayFiniteBytes) {
  const size_t head_dim = 64;
  std::vector<float> k = random_block(head_dim, 10), v = random_block(head_dim, 11);
  k[0] = v[0] = NAN;
  k[70] = v[70] = INFINITY;
  k[71] = v[71] = -3e38f;
  for (const std::string_view target : kTargetNames) {
    if (!set_cpu_target(target)) continue;
    const auto index = index_of(cpu::make_index, k, 0xfffffffcu, head_dim);
    for (size_t i = 0; i < 3 * head_dim; ++i) ASSERT_TRUE(std::isfinite(index_f16(index, i)));
    std::vector<uint8_t> body(body_bytes(KvFormat::kInt8, head_dim));
    cpu::encode(KvFormat::kInt8, k.data(), v.data(), head_dim, index.data(), body.data());
    std::vector<float> k1(k.size()), v1(k.size());
    cpu::decode(KvFormat::kInt8, index.data(), body.data(), head_dim, k1.data(), v1.data());
    for (size_t i = 0; i < k.size(); ++i) ASSERT_TRUE(std::isfinite(k1[i] + v1[i])) << i;
  }
  set_cpu_target("best");
}

}  // namespace
}  // namespace varve::kernels
