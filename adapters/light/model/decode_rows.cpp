#include "adapters/light/model/decode_rows.h"

#include <ggml.h>

#include <algorithm>
#include <cstring>

#include "kernels/number.h"

namespace varve::light {
namespace {

using kernels::WeightFormat;

// One block of a row being decoded: its bytes, and where its codes, scales and mins go.
struct Block {
  const uint8_t* in;
  uint8_t* codes;  // bit patterns; int8_t for 8-bit formats
  float* scale;
  float* min;

  float f16(size_t at) const {
    uint16_t bits;
    std::memcpy(&bits, in + at, sizeof bits);
    return kernels::f32_from_f16(bits);
  }
};

uint8_t signed_code(int value) { return static_cast<uint8_t>(static_cast<int8_t>(value)); }

void nibbles(const uint8_t* in, uint8_t* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = in[i] & 15;
    out[i + 16] = in[i] >> 4;
  }
}

void q4_0(const Block& b) {
  b.scale[0] = b.f16(0);
  b.min[0] = -8.0f * b.scale[0];
  nibbles(b.in + 2, b.codes);
}

void q4_1(const Block& b) {
  b.scale[0] = b.f16(0);
  b.min[0] = b.f16(2);
  nibbles(b.in + 4, b.codes);
}

// Fifth bits: bit i of the word belongs to element i.
void five_bits(const uint8_t* high, const uint8_t* low, int offset, uint8_t* out) {
  uint32_t bits;
  std::memcpy(&bits, high, sizeof bits);
  nibbles(low, out);
  for (int i = 0; i < 32; ++i) out[i] = signed_code((out[i] | ((bits >> i) & 1) << 4) - offset);
}

void q5_0(const Block& b) {
  b.scale[0] = b.f16(0);
  five_bits(b.in + 2, b.in + 6, 16, b.codes);
}

void q5_1(const Block& b) {
  b.scale[0] = b.f16(0);
  b.min[0] = b.f16(2);
  five_bits(b.in + 4, b.in + 8, 0, b.codes);
}

void q8_0(const Block& b) {
  b.scale[0] = b.f16(0);
  std::memcpy(b.codes, b.in + 2, 32);
}

// The 6-bit scale and min of group g of 8, as Q4_K and Q5_K store them in 12 bytes.
void k4_scale_min(const uint8_t* in, int g, int& scale, int& min) {
  if (g < 4) {
    scale = in[g] & 63;
    min = in[g + 4] & 63;
  } else {
    scale = (in[g + 4] & 15) | (in[g - 4] >> 6) << 4;
    min = (in[g + 4] >> 4) | (in[g] >> 6) << 4;
  }
}

void k4_params(const Block& b) {
  const float d = b.f16(0), dmin = b.f16(2);
  for (int g = 0; g < 8; ++g) {
    int scale, min;
    k4_scale_min(b.in + 4, g, scale, min);
    b.scale[g] = d * static_cast<float>(scale);
    b.min[g] = -dmin * static_cast<float>(min);
  }
}

void q4_k(const Block& b) {
  k4_params(b);
  for (int i = 0; i < 128; ++i) {
    uint8_t* out = b.codes + i / 32 * 64 + i % 32;
    out[0] = b.in[16 + i] & 15;
    out[32] = b.in[16 + i] >> 4;
  }
}

void q5_k(const Block& b) {
  k4_params(b);
  const uint8_t* high = b.in + 16;
  const uint8_t* low = b.in + 48;
  for (int i = 0; i < 128; ++i) {
    const int pair = i / 32, lane = i % 32;
    uint8_t* out = b.codes + pair * 64 + lane;
    out[0] = static_cast<uint8_t>((low[i] & 15) | ((high[lane] >> (2 * pair)) & 1) << 4);
    out[32] = static_cast<uint8_t>((low[i] >> 4) | ((high[lane] >> (2 * pair + 1)) & 1) << 4);
  }
}

void q6_k(const Block& b) {
  const float d = b.f16(208);
  for (int g = 0; g < 16; ++g)
    b.scale[g] = d * static_cast<float>(static_cast<int8_t>(b.in[192 + g]));
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, quarter = i % 128 / 32, lane = i % 32;
    const uint8_t low = b.in[half * 64 + quarter % 2 * 32 + lane];
    const uint8_t high = b.in[128 + half * 32 + lane];
    b.codes[i] = signed_code(
        ((quarter < 2 ? low & 15 : low >> 4) | ((high >> (2 * quarter)) & 3) << 4) - 32);
  }
}

void q3_k(const Block& b) {
  const uint8_t* packed =
      b.in + 96;  // 16 scales of 6 bits: low nibbles in 8 bytes, high pairs in 4
  const float d = b.f16(108);
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4;
    const int high = (packed[8 + g % 4] >> (2 * (g / 4))) & 3;
    b.scale[g] = d * static_cast<float>((low | high << 4) - 32);
  }
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, quarter = i % 128 / 32, lane = i % 32;
    const int low = (b.in[32 + half * 32 + lane] >> (2 * quarter)) & 3;
    const bool high = (b.in[lane] >> (4 * half + quarter)) & 1;
    b.codes[i] = signed_code(low - (high ? 0 : 4));
  }
}

void q2_k(const Block& b) {
  const float d = b.f16(80), dmin = b.f16(82);
  for (int g = 0; g < 16; ++g) {
    b.scale[g] = d * static_cast<float>(b.in[g] & 15);
    b.min[g] = -dmin * static_cast<float>(b.in[g] >> 4);
  }
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, quarter = i % 128 / 32, lane = i % 32;
    b.codes[i] = (b.in[16 + half * 32 + lane] >> (2 * quarter)) & 3;
  }
}

// The 16 levels of the IQ4 types.
constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};

void iq4_levels(const uint8_t* in, uint8_t* out) {
  nibbles(in, out);
  for (int i = 0; i < 32; ++i) out[i] = signed_code(kIq4Levels[out[i]]);
}

void iq4_nl(const Block& b) {
  b.scale[0] = b.f16(0);
  iq4_levels(b.in + 2, b.codes);
}

void iq4_xs(const Block& b) {
  const float d = b.f16(0);
  uint16_t high;
  std::memcpy(&high, b.in + 2, sizeof high);
  for (int g = 0; g < 8; ++g) {
    const int low = (b.in[4 + g / 2] >> (4 * (g % 2))) & 15;
    b.scale[g] = d * static_cast<float>((low | ((high >> (2 * g)) & 3) << 4) - 32);
    iq4_levels(b.in + 8 + 16 * g, b.codes + 32 * g);
  }
}

struct Coded {
  ggml_type type;
  PackedShape shape;
  void (*decode)(const Block&);
};

const Coded* find_coded(uint32_t type) {
  constexpr WeightFormat w4 = WeightFormat::kW4, w8 = WeightFormat::kW8;
  static const Coded table[] = {
      {GGML_TYPE_Q4_0, {w4, 32, true}, q4_0},      {GGML_TYPE_Q4_1, {w4, 32, true}, q4_1},
      {GGML_TYPE_Q4_K, {w4, 32, true}, q4_k},      {GGML_TYPE_Q5_0, {w8, 32, false}, q5_0},
      {GGML_TYPE_Q5_1, {w8, 32, true}, q5_1},      {GGML_TYPE_Q5_K, {w8, 32, true}, q5_k},
      {GGML_TYPE_Q8_0, {w8, 32, false}, q8_0},     {GGML_TYPE_Q6_K, {w8, 16, false}, q6_k},
      {GGML_TYPE_Q3_K, {w8, 16, false}, q3_k},     {GGML_TYPE_Q2_K, {w8, 16, true}, q2_k},
      {GGML_TYPE_IQ4_NL, {w8, 32, false}, iq4_nl}, {GGML_TYPE_IQ4_XS, {w8, 32, false}, iq4_xs},
  };
  const auto* end = table + std::size(table);
  const auto* found = std::find_if(table, end, [&](const Coded& c) { return c.type == type; });
  return found == end ? nullptr : found;
}

}  // namespace

PackedShape coded_shape(uint32_t type) {
  const Coded* coded = find_coded(type);
  return coded != nullptr ? coded->shape : PackedShape{WeightFormat::kBf16};
}

bool is_float_type(uint32_t type) {
  return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

bool fits_bf16(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(),
                     [](float v) { return (kernels::bits_from_f32(v) & 0xffffu) == 0; });
}

void expand(uint32_t type, const std::byte* stored, float* out, size_t count) {
  if (type == GGML_TYPE_F32) {
    std::memcpy(out, stored, count * sizeof(float));
  } else {
    ggml_get_type_traits(static_cast<ggml_type>(type))
        ->to_float(stored, out, static_cast<int64_t>(count));
  }
}

void decode_row(uint32_t type, const PackedShape& shape, const std::byte* stored, size_t cols,
                size_t row, DecodedRows& out) {
  const Coded* coded = find_coded(type);
  if (coded == nullptr) {
    expand(type, stored, out.values.data() + row * cols, cols);
    return;
  }
  const auto* traits = ggml_get_type_traits(coded->type);
  const auto block_cols = static_cast<size_t>(traits->blck_size);
  const size_t groups = cols / shape.group, block_groups = block_cols / shape.group;
  uint8_t* codes = shape.format == WeightFormat::kW4
                       ? out.codes4.data()
                       : reinterpret_cast<uint8_t*>(out.codes8.data());
  for (size_t i = 0; i < cols / block_cols; ++i) {
    const size_t group = row * groups + i * block_groups;
    coded->decode({reinterpret_cast<const uint8_t*>(stored) + i * traits->type_size,
                   codes + row * cols + i * block_cols, out.scale.data() + group,
                   shape.has_min ? out.min.data() + group : nullptr});
  }
}

void resize(DecodedRows& out, const PackedShape& shape, size_t rows, size_t cols) {
  const bool coded = shape.format == WeightFormat::kW4 || shape.format == WeightFormat::kW8;
  out.codes4.resize(shape.format == WeightFormat::kW4 ? rows * cols : 0);
  out.codes8.resize(shape.format == WeightFormat::kW8 ? rows * cols : 0);
  out.scale.resize(coded ? rows * (cols / shape.group) : 0);
  out.min.resize(coded && shape.has_min ? rows * (cols / shape.group) : 0);
  out.values.resize(coded ? 0 : rows * cols);
}

}  // namespace varve::light
