#include "kernels/page.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/number.h"

namespace varve::kernels::ref {
namespace {

template <typename T>
T load(const uint8_t* from, size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void store(uint8_t* to, size_t i, T value) {
  std::memcpy(to + i * sizeof(T), &value, sizeof(T));
}

uint32_t code_of(float k, float k_min, float k_step) {
  const float inverse = k_step > 0 ? 1.0f / k_step : 0.0f;
  const float code = (k - k_min) * inverse;
  return static_cast<uint32_t>(std::nearbyint(code > 0 ? std::min(code, 255.0f) : 0.0f));
}

// Where token t's two bits lie in a plane of an index or int8 body.
uint32_t plane_shift(size_t t) { return static_cast<uint32_t>(8 * (t % 8) + 2 * (t / 8)); }

constexpr float kF16Max = 65504.0f;

uint16_t nearest_f16(float x) { return f16_from_f32(std::clamp(x, -kF16Max, kF16Max)); }

// The largest f16 not above x.
uint16_t f16_below(float x) {
  const uint16_t h = nearest_f16(x);
  if (!(f32_from_f16(h) > x)) return h;
  if ((h & 0x8000u) != 0) return h == 0xfbffu ? h : static_cast<uint16_t>(h + 1);
  return h == 0 ? uint16_t{0x8001} : static_cast<uint16_t>(h - 1);
}

// The smallest f16 not below x >= 0.
uint16_t f16_above(float x) {
  const uint16_t h = nearest_f16(x);
  return f32_from_f16(h) < x && h < 0x7bffu ? static_cast<uint16_t>(h + 1) : h;
}

struct Range {
  uint16_t k_min, k_step;
};

// k_min rounds down and k_step up, so that 0..255 spans the channel and no code is clamped.
Range channel_range(const float* k, uint32_t live_mask, size_t head_dim) {
  float low = INFINITY, high = -INFINITY;
  for (size_t t = 0; t < kBlockTokens; ++t) {
    if ((live_mask >> t & 1u) == 0) continue;
    low = std::min(low, k[t * head_dim]);
    high = std::max(high, k[t * head_dim]);
  }
  if (!(low < high)) return {nearest_f16(low), 0};
  const uint16_t k_min = f16_below(low);
  return {k_min, f16_above((high - f32_from_f16(k_min)) / 255.0f)};
}

void encode_f32(const float* k, const float* v, size_t head_dim, uint8_t* body) {
  for (size_t t = 0; t < kBlockTokens; ++t) {
    for (size_t c = 0; c < head_dim; ++c) {
      store(body, c * kBlockTokens + t, k[t * head_dim + c]);
      store(body, (kBlockTokens + t) * head_dim + c, v[t * head_dim + c]);
    }
  }
}

void encode_bf16(const float* k, const float* v, size_t head_dim, uint8_t* body) {
  uint8_t* v_body = body + kBlockTokens * head_dim * 2;
  for (size_t t = 0; t < kBlockTokens; ++t) {
    for (size_t c = 0; c < head_dim; ++c) {
      store(body, (c / 2 * kBlockTokens + t) * 2 + c % 2, bf16_from_f32(k[t * head_dim + c]));
      store(v_body, (t / 2 * head_dim + c) * 2 + t % 2, bf16_from_f32(v[t * head_dim + c]));
    }
  }
}

void encode_int8_keys(const float* k, size_t head_dim, const uint8_t* index, uint8_t* body) {
  for (size_t c = 0; c < head_dim; ++c) {
    const float k_min = f32_from_f16(load<uint16_t>(index, c));
    const float k_step = f32_from_f16(load<uint16_t>(index, head_dim + c));
    uint64_t mid = 0;
    uint8_t low[16] = {};
    for (size_t t = 0; t < kBlockTokens; ++t) {
      const uint32_t code = code_of(k[t * head_dim + c], k_min, k_step);
      mid |= uint64_t{code >> 4 & 3u} << plane_shift(t);
      low[t % 16] = static_cast<uint8_t>(low[t % 16] | (code & 15u) << (t < 16 ? 0 : 4));
    }
    store(body, c, mid);
    std::memcpy(body + 8 * head_dim + 16 * c, low, sizeof low);
  }
}

void encode_int8_values(const float* v, size_t head_dim, uint8_t* body) {
  uint8_t* codes = body + 24 * head_dim;
  uint8_t* steps = codes + kBlockTokens * head_dim;
  const size_t n_groups = (head_dim + 31) / 32;
  for (size_t t = 0; t < kBlockTokens; ++t) {
    for (size_t g = 0; g < n_groups; ++g) {
      const size_t begin = t * head_dim + g * 32, end = std::min(begin + 32, (t + 1) * head_dim);
      float largest = 0;
      for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(v[i]));
      const uint16_t half = f16_above(largest / 127.0f);
      const float inverse = half > 0 ? 1.0f / f32_from_f16(half) : 0.0f;
      store(steps, t * n_groups + g, half);
      for (size_t i = begin; i < end; ++i) {
        const float code = std::nearbyint(std::clamp(v[i] * inverse, -127.0f, 127.0f));
        store(codes, i, static_cast<int8_t>(code == code ? code : 0.0f));
      }
    }
  }
}

void decode_f32(const uint8_t* body, size_t head_dim, float* k, float* v) {
  for (size_t t = 0; t < kBlockTokens; ++t) {
    for (size_t c = 0; c < head_dim; ++c) {
      if (k != nullptr) k[t * head_dim + c] = load<float>(body, c * kBlockTokens + t);
      if (v != nullptr) {
        v[t * head_dim + c] = load<float>(body, (kBlockTokens + t) * head_dim + c);
      }
    }
  }
}

void decode_bf16(const uint8_t* body, size_t head_dim, float* k, float* v) {
  const uint8_t* v_body = body + kBlockTokens * head_dim * 2;
  for (size_t t = 0; t < kBlockTokens; ++t) {
    for (size_t c = 0; c < head_dim; ++c) {
      const size_t k_at = (c / 2 * kBlockTokens + t) * 2 + c % 2;
      const size_t v_at = (t / 2 * head_dim + c) * 2 + t % 2;
      if (k != nullptr) k[t * head_dim + c] = f32_from_bf16(load<uint16_t>(body, k_at));
      if (v != nullptr) v[t * head_dim + c] = f32_from_bf16(load<uint16_t>(v_body, v_at));
    }
  }
}

void decode_int8_keys(const uint8_t* index, const uint8_t* body, size_t head_dim, float* k) {
  for (size_t c = 0; c < head_dim; ++c) {
    const float k_min = f32_from_f16(load<uint16_t>(index, c));
    const float k_step = f32_from_f16(load<uint16_t>(index, head_dim + c));
    const uint64_t top = load<uint64_t>(index + 6 * head_dim, c);
    const uint64_t mid = load<uint64_t>(body, c);
    for (size_t t = 0; t < kBlockTokens; ++t) {
      const uint32_t low = body[8 * head_dim + 16 * c + t % 16] >> (t < 16 ? 0 : 4) & 15u;
      const uint32_t shift = plane_shift(t);
      const uint64_t code = (top >> shift & 3u) << 6 | (mid >> shift & 3u) << 4 | low;
      k[t * head_dim + c] = k_min + k_step * static_cast<float>(code);
    }
  }
}

void decode_int8_values(const uint8_t* body, size_t head_dim, float* v) {
  const uint8_t* codes = body + 24 * head_dim;
  const uint8_t* steps = codes + kBlockTokens * head_dim;
  const size_t n_groups = (head_dim + 31) / 32;
  for (size_t t = 0; t < kBlockTokens; ++t) {
    for (size_t c = 0; c < head_dim; ++c) {
      const float step = f32_from_f16(load<uint16_t>(steps, t * n_groups + c / 32));
      v[t * head_dim + c] = step * static_cast<float>(load<int8_t>(codes, t * head_dim + c));
    }
  }
}

}  // namespace

void make_index(const float* k, uint32_t live_mask, size_t head_dim, uint8_t* index) {
  std::memset(index, 0, index_bytes(head_dim));
  if (live_mask == 0) return;
  const float n_live = static_cast<float>(std::popcount(live_mask));
  for (size_t c = 0; c < head_dim; ++c) {
    const Range range = channel_range(k + c, live_mask, head_dim);
    const float k_min = f32_from_f16(range.k_min), k_step = f32_from_f16(range.k_step);
    const float centre = k_min + 127.5f * k_step;
    float distance = 0;
    uint64_t top = 0;
    for (size_t t = 0; t < kBlockTokens; ++t) {
      if ((live_mask >> t & 1u) == 0) continue;
      distance += std::fabs(k[t * head_dim + c] - centre);
      top |= uint64_t{code_of(k[t * head_dim + c], k_min, k_step) >> 6} << plane_shift(t);
    }
    store(index, c, range.k_min);
    store(index, head_dim + c, range.k_step);
    store(index, 2 * head_dim + c, nearest_f16(distance / n_live));
    store(index + 6 * head_dim, c, top);
  }
}

void encode(KvFormat format, const float* k, const float* v, size_t head_dim, const uint8_t* index,
            uint8_t* body) {
  switch (format) {
    case KvFormat::kF32:
      return encode_f32(k, v, head_dim, body);
    case KvFormat::kBf16:
      return encode_bf16(k, v, head_dim, body);
    case KvFormat::kInt8:
      encode_int8_keys(k, head_dim, index, body);
      return encode_int8_values(v, head_dim, body);
  }
}

void decode(KvFormat format, const uint8_t* index, const uint8_t* body, size_t head_dim, float* k,
            float* v) {
  switch (format) {
    case KvFormat::kF32:
      return decode_f32(body, head_dim, k, v);
    case KvFormat::kBf16:
      return decode_bf16(body, head_dim, k, v);
    case KvFormat::kInt8:
      if (k != nullptr) decode_int8_keys(index, body, head_dim, k);
      if (v != nullptr) decode_int8_values(body, head_dim, v);
      return;
  }
}

}  // namespace varve::kernels::ref
