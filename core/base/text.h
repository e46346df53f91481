// Text that came from outside, made fit for a log line or a terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace varve {

// Bytes of the longest prefix of `text` that is well-formed UTF-8 (RFC 3629: no overlong forms, no
// surrogates).
size_t utf8_prefix(std::string_view text);

// The same, without control characters but tab and line feed.
size_t clean_prefix(std::string_view text);

// The first `bytes_max` bytes of `text`, every byte that does not belong replaced by '?'; never cut
// inside a character.
std::string clean_text(std::string_view text, size_t bytes_max);

// "1.1" for 0x10001.
std::string version_text(uint32_t version);

}  // namespace varve
