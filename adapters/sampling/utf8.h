// UTF-8, one code point at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace varve::sampling {

inline constexpr uint32_t kCodePointMax = 0x10FFFF;

// Bytes of the sequence that begins with `byte`; 0 when none can.
constexpr uint8_t utf8_length(unsigned char byte) {
  return byte < 0x80 ? 1 : byte < 0xC2 || byte > 0xF4 ? 0 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The bits that the first byte of a sequence of `length` bytes gives.
constexpr uint32_t utf8_first_bits(unsigned char byte, uint8_t length) {
  return length == 1 ? byte : byte & (0x7Fu >> length);
}

// The smallest code point that needs `length` bytes.
constexpr uint32_t utf8_least(uint8_t length) {
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  return kLeast[length];
}

constexpr bool is_surrogate(uint32_t code_point) {
  return code_point >= 0xD800 && code_point <= 0xDFFF;
}

// Length of the code point at the start of `text`; 0 when it is not valid.
inline size_t read_utf8(std::string_view text, uint32_t* code_point) {
  const uint8_t length = text.empty() ? 0 : utf8_length(static_cast<unsigned char>(text[0]));
  if (length == 0 || length > text.size()) return 0;
  uint32_t value = utf8_first_bits(static_cast<unsigned char>(text[0]), length);
  for (uint8_t i = 1; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0) != 0x80) return 0;
    value = value << 6 | (byte & 0x3F);
  }
  if (value < utf8_least(length) || value > kCodePointMax || is_surrogate(value)) return 0;
  *code_point = value;
  return length;
}

}  // namespace varve::sampling
