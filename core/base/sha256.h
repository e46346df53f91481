// SHA-256, as bytes and as text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace varve {

using Sha256 = std::array<uint8_t, 32>;

// Throws std::bad_alloc: the algorithm is always there, what can fail is an allocation.
Sha256 sha256(std::string_view bytes);

// 64 lower-case hex digits.
std::string sha256_hex(std::string_view bytes);

}  // namespace varve
