// 16-bit number formats, one value at a time. bf16 and f16 travel as uint16_t bit patterns
// everywhere in kernels.
#pragma once

#include <cstdint>
#include <cstring>

namespace varve::kernels {

inline float f32_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t bits_from_f32(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float f32_from_bf16(uint16_t bits) {
  return f32_from_bits(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest even; NaN stays NaN.
inline uint16_t bf16_from_f32(float value) {
  const uint32_t bits = bits_from_f32(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float f32_from_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return f32_from_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // Scaling by 2^112 re-biases the exponent and normalises subnormals at once.
  const float scaled = f32_from_bits(magnitude << 13) * f32_from_bits(0x77800000u);
  return f32_from_bits(sign | bits_from_f32(scaled));
}

// Round to nearest even; too large becomes infinity; NaN stays NaN.
inline uint16_t f16_from_f32(float value) {
  const uint32_t bits = bits_from_f32(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Adding 0.5 leaves the subnormal f16 in the low mantissa bits, rounded by the hardware.
    const float shifted = f32_from_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_from_f32(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace varve::kernels
