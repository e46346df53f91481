// The 8-bit number E4M3 of the OCP 8-bit Floating Point Specification (OFP8), revision 1.0: sign,
// 4 bits of exponent (bias 7), 3 of mantissa; no infinities; one NaN per sign.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace e4m3 {

inline constexpr float kMax = 448;  // 1.75 * 2^8, code 0x7e
inline constexpr uint8_t kNan = 0x7f, kSign = 0x80;

// Nearest, ties to even. Saturates: what is larger than 448, infinities included, is 448.
inline uint8_t encode(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>(bits >> 24 & kSign);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | kNan;
  const auto positive = std::bit_cast<float>(magnitude);
  if (positive >= kMax) return sign | (kNan - 1);
  // Below 2^-6 the codes count steps of 2^-9; 8 of them are the smallest normal number.
  constexpr float kSmallestNormal = 0x1p-6f, kStepsPerOne = 0x1p9f;
  if (positive < kSmallestNormal) {
    return sign | static_cast<uint8_t>(std::nearbyint(positive * kStepsPerOne));
  }
  constexpr int kDropped = 23 - 3;
  constexpr uint32_t kBias = (127 - 7) << 3;
  const uint32_t half_to_even = (1u << (kDropped - 1)) - 1 + (magnitude >> kDropped & 1);
  return sign | static_cast<uint8_t>(((magnitude + half_to_even) >> kDropped) - kBias);
}

// The value of each code.
inline const std::array<float, 256>& values() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> made{};
    for (int code = 0; code < 256; ++code) {
      const int exponent = code >> 3 & 15, mantissa = code & 7;
      float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                  : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
      if ((code & kNan) == kNan) value = std::numeric_limits<float>::quiet_NaN();
      made[static_cast<size_t>(code)] = (code & kSign) != 0 ? -value : value;
    }
    return made;
  }();
  return table;
}

}  // namespace e4m3
