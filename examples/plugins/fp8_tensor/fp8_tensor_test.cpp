#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

#include "e4m3.h"
#include "mri/kind/quantizer.h"
#include "mri/sdk/testing.hpp"

namespace {

constexpr uint32_t kHeadDim = 64;
constexpr uint64_t kValues = uint64_t{MRI_BLOCK_TOKENS} * kHeadDim;

void every_code_comes_back() {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3::values()[static_cast<size_t>(code)];
    if (std::isnan(value)) {
      MRI_CHECK((code & e4m3::kNan) == e4m3::kNan);
    } else {
      MRI_CHECK(e4m3::encode(value) == code);
    }
  }
  // The specification's own table.
  MRI_CHECK(e4m3::values()[0x01] == 0x1p-9f && e4m3::values()[0x07] == 0x1.cp-7f);
  MRI_CHECK(e4m3::values()[0x08] == 0x1p-6f && e4m3::values()[0x7e] == 448);
  MRI_CHECK(e4m3::values()[0x38] == 1 && e4m3::values()[0xb8] == -1);
}

// Between each two neighbours: up to the middle the lower, from there the upper; the middle itself
// goes to the even code.
void rounds_to_nearest_ties_to_even() {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = e4m3::values()[static_cast<size_t>(code)];
    const float high = e4m3::values()[static_cast<size_t>(code) + 1];
    const float middle = (low + high) / 2;
    MRI_CHECK(e4m3::encode(std::nextafter(middle, 0.f)) == code);
    MRI_CHECK(e4m3::encode(std::nextafter(middle, 1000.f)) == code + 1);
    MRI_CHECK(e4m3::encode(middle) == code + code % 2);
    MRI_CHECK(e4m3::encode(-middle) == (e4m3::kSign | (code + code % 2)));
  }
}

void saturates_and_keeps_nan() {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {448.f, 449.f, 464.f, 1e30f, infinity}) {
    MRI_CHECK(e4m3::encode(x) == 0x7e && e4m3::encode(-x) == 0xfe);
  }
  MRI_CHECK((e4m3::encode(NAN) & e4m3::kNan) == e4m3::kNan);
  MRI_CHECK(e4m3::encode(-0.f) == e4m3::kSign && e4m3::encode(1e-30f) == 0);
}

struct Page {
  std::vector<float> k = std::vector<float>(kValues), v = std::vector<float>(kValues);
};

// Encoded and decoded again. What lies behind the body must stay as it was.
Page round_trip(const Page& page, uint32_t live_mask = UINT32_MAX) {
  const mri::testing::Plugin plugin;
  const auto& quantizer = plugin.table<mri_quantizer_v1>(MRI_QUANTIZER);
  auto desc = mri::testing::sized<mri_quant_desc>();
  MRI_CHECK(quantizer.describe(plugin.self(), kHeadDim, &desc, nullptr) == MRI_OK);
  MRI_CHECK(desc.body_bytes == 8 + 2 * kValues);
  std::vector<uint8_t> body(desc.body_bytes + 1, 0xa5);
  auto encode = mri::testing::sized<mri_quant_encode_req>();
  encode.k = page.k.data();
  encode.v = page.v.data();
  encode.body = body.data();
  encode.head_dim = kHeadDim;
  encode.live_mask = live_mask;
  MRI_CHECK(quantizer.encode(plugin.self(), &encode, nullptr) == MRI_OK);
  MRI_CHECK(body.back() == 0xa5);
  Page out;
  auto decode = mri::testing::sized<mri_quant_decode_req>();
  decode.body = body.data();
  decode.k = out.k.data();
  decode.v = out.v.data();
  decode.head_dim = kHeadDim;
  decode.live_mask = live_mask;
  MRI_CHECK(quantizer.decode(plugin.self(), &decode, nullptr) == MRI_OK);
  return out;
}

// Half a step: 2^-4 of a normal number, 2^-10 scales of a subnormal one.
void error_is_at_most_half_a_step() {
  for (const float size : {1e-3f, 1.f, 1e4f}) {
    Page page;
    for (uint64_t i = 0; i < kValues; ++i) {
      page.k[i] = size * std::sin(static_cast<float>(i));
      page.v[i] = size * std::cos(static_cast<float>(i) * 0.7f);
    }
    const Page out = round_trip(page);
    const float smallest = size / 448 * 0x1.01p-10f;
    for (uint64_t i = 0; i < kValues; ++i) {
      MRI_CHECK(std::fabs(out.k[i] - page.k[i]) <= std::fabs(page.k[i]) * 0x1.01p-4f + smallest);
      MRI_CHECK(std::fabs(out.v[i] - page.v[i]) <= std::fabs(page.v[i]) * 0x1.01p-4f + smallest);
    }
  }
}

void keys_and_values_have_scales_of_their_own() {
  Page page;
  for (float& x : page.k) x = 1000;
  for (float& x : page.v) x = 0.001f;
  const Page out = round_trip(page);
  MRI_CHECK(std::fabs(out.k[5] - 1000) < 0.01f && std::fabs(out.v[5] - 0.001f) < 1e-8f);
}

void extremes_stay_what_they_are() {
  Page page;
  page.k[0] = NAN;
  page.k[1] = std::numeric_limits<float>::infinity();
  page.k[2] = -2;
  page.v[0] = std::numeric_limits<float>::max();
  page.v[1] = std::numeric_limits<float>::denorm_min();
  const Page out = round_trip(page);
  MRI_CHECK(std::isnan(out.k[0]));
  MRI_CHECK(out.k[1] == 2 && out.k[2] == -2);  // the largest finite number of the page
  MRI_CHECK(std::isfinite(out.v[0]) && out.v[0] > 3e38f && out.v[1] == 0);
  const Page zeros = round_trip(Page{});
  MRI_CHECK(zeros.k == Page{}.k && zeros.v == Page{}.v);
}

void dead_tokens_do_not_count() {
  Page page;
  for (float& x : page.k) x = 1;
  page.k[0] = 1e6f;  // of token 0
  const Page out = round_trip(page, UINT32_MAX - 1);
  MRI_CHECK(out.k[0] == 0 && std::fabs(out.k[kHeadDim] - 1) < 1e-6f);
}

}  // namespace

int main() {
  every_code_comes_back();
  rounds_to_nearest_ties_to_even();
  saturates_and_keeps_nan();
  error_is_at_most_half_a_step();
  keys_and_values_have_scales_of_their_own();
  extremes_stay_what_they_are();
  dead_tokens_do_not_count();
  return mri::testing::result();
}
