#include "mri/kind/quantizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/support/fake_host.h"

namespace varve::test {
namespace {

constexpr uint32_t kDim = 64, kSize = MRI_BLOCK_TOKENS * kDim;

// One page: what goes in, its index, its body, what comes out.
struct Page {
  std::vector<float> k, v, k_out, v_out;
  std::vector<uint8_t> index, body;
};

class QuantizerTest : public testing::Test {
 protected:
  static mri_quant_desc describe(const FakeHost& host) {
    auto desc = sized<mri_quant_desc>();
    const auto& table = host.table<mri_quantizer_v1>(MRI_QUANTIZER);
    EXPECT_EQ(table.describe(host.self(), kDim, &desc, nullptr), MRI_OK);
    return desc;
  }

  Page page() {
    Page p;
    std::normal_distribution<float> normal;
    p.k.resize(kSize);
    p.v.resize(kSize);
    for (float& x : p.k) x = 3 * normal(random_) + 1;
    for (float& x : p.v) x = normal(random_);
    p.index.resize(ref_kernels().index_bytes(nullptr, kDim));
    ref_kernels().make_index(nullptr, p.k.data(), UINT32_MAX, kDim, p.index.data());
    return p;
  }

  // Encodes and decodes `p` after `before`, and checks that not a byte too many is written.
  static void code(const FakeHost& host, Page& p, const Page* before) {
    const auto& table = host.table<mri_quantizer_v1>(MRI_QUANTIZER);
    const uint64_t bytes = describe(host).body_bytes;
    p.body.assign(bytes + 8, 0xa5);
    auto encode = sized<mri_quant_encode_req>();
    encode.k = p.k.data();
    encode.v = p.v.data();
    encode.index = p.index.data();
    encode.body = p.body.data();
    encode.head_dim = kDim;
    encode.live_mask = UINT32_MAX;
    if (before != nullptr)
      encode.previous_index = before->index.data(), encode.previous_body = before->body.data();
    ASSERT_EQ(table.encode(host.self(), &encode, nullptr), MRI_OK);
    for (int i = 0; i < 8; ++i) ASSERT_EQ(p.body[bytes + i], 0xa5);
    decode(host, p, before);
  }

  static void decode(const FakeHost& host, Page& p, const Page* before) {
    p.k_out.assign(kSize, NAN);
    p.v_out.assign(kSize, NAN);
    auto req = sized<mri_quant_decode_req>();
    req.index = p.index.data();
    req.body = p.body.data();
    req.k = p.k_out.data();
    req.v = p.v_out.data();
    req.head_dim = kDim;
    req.live_mask = UINT32_MAX;
    if (before != nullptr)
      req.previous_index = before->index.data(), req.previous_body = before->body.data();
    ASSERT_EQ(host.table<mri_quantizer_v1>(MRI_QUANTIZER).decode(host.self(), &req, nullptr),
              MRI_OK);
  }

  static double largest_error(const Page& p) {
    double error = 0;
    for (uint32_t i = 0; i < kSize; ++i) {
      error = std::max({error, std::fabs(double{p.k[i]} - double{p.k_out[i]}),
                        std::fabs(double{p.v[i]} - double{p.v_out[i]})});
    }
    return error;
  }

  static double mean(const float* token) {
    double sum = 0;
    for (uint32_t c = 0; c < kDim; ++c) sum += token[c];
    return sum / kDim;
  }

  std::mt19937 random_{3};
};

TEST_F(QuantizerTest, Bf16KeepsEightBitsOfMantissa) {
  const FakeHost host(BF16_PLUGIN, {});
  EXPECT_EQ(describe(host).format, MRI_KV_BF16);
  EXPECT_EQ(describe(host).body_bytes, 4u * kSize);
  Page p = page();
  code(host, p, nullptr);
  EXPECT_LT(largest_error(p), 0.04);
  EXPECT_GT(largest_error(p), 0);
}

TEST_F(QuantizerTest, F32IsExact) {
  const FakeHost host(BF16_PLUGIN, {param("format", "f32")});
  EXPECT_EQ(describe(host).format, MRI_KV_F32);
  Page p = page();
  code(host, p, nullptr);
  EXPECT_EQ(largest_error(p), 0);
}

TEST_F(QuantizerTest, Int8ErrsByHalfAStep) {
  const FakeHost host(INT8_PLUGIN, {});
  EXPECT_EQ(describe(host).format, MRI_KV_INT8);
  EXPECT_LT(describe(host).bits_per_value, 8.75);
  Page p = page();
  code(host, p, nullptr);
  EXPECT_LT(largest_error(p), 0.06);
}

TEST_F(QuantizerTest, SmoothingMendsTheStepBetweenPages) {
  const FakeHost plain(INT8_PLUGIN, {}), smooth(INT8_PLUGIN, {param("smoothing", true)});
  const mri_quant_desc desc = describe(smooth);
  EXPECT_GE(desc.format, MRI_KV_CUSTOM);
  EXPECT_LT(static_cast<double>(desc.body_bytes - describe(plain).body_bytes) /
                static_cast<double>(desc.body_bytes),
            0.003);
  double plain_error = 0, smooth_error = 0;
  for (int i = 0; i < 20; ++i) {
    Page before = page(), p = page();
    code(plain, before, nullptr);
    code(plain, p, nullptr);
    plain_error += std::fabs(mean(p.k.data()) - mean(p.k_out.data()));
    code(smooth, before, nullptr);
    code(smooth, p, &before);
    smooth_error += std::fabs(mean(p.k.data()) - mean(p.k_out.data()));
    EXPECT_NEAR(mean(p.v.data()), mean(p.v_out.data()), 2e-4);
    EXPECT_LT(largest_error(p), 0.07);
  }
  EXPECT_LT(smooth_error, plain_error / 3);
}

TEST_F(QuantizerTest, SmoothingNeedsThePageBeforeAtBothTimes) {
  const FakeHost plain(INT8_PLUGIN, {}), smooth(INT8_PLUGIN, {param("smoothing", true)});
  Page before = page(), p = page(), same = p;
  code(plain, same, nullptr);
  code(smooth, before, nullptr);
  code(smooth, p, nullptr);
  decode(smooth, p, &before);  // it was not there when p was encoded
  EXPECT_EQ(p.k_out, same.k_out);
  code(smooth, p, &before);
  decode(smooth, p, nullptr);
  EXPECT_EQ(p.k_out, same.k_out);
}

TEST_F(QuantizerTest, RefusesAnUnknownFormat) {
  EXPECT_THROW(FakeHost(BF16_PLUGIN, {param("formatt", "f32")}), std::runtime_error);
}

}  // namespace
}  // namespace varve::test
