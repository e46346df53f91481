#include "core/base/text.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace varve {
namespace {

// Bytes of the character at the start of `text`, or 0 when there is none.
size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t n = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < n) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f)) return 0;
  if ((first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) return 0;
  return n;
}

// The same, or 0 when it is a control character that is not allowed.
size_t clean_character_bytes(std::string_view text) {
  const char first = text[0];
  const bool is_control = (first >= 0 && first < 0x20) || first == 0x7f;
  return is_control && first != '\t' && first != '\n' ? 0 : character_bytes(text);
}

template <class Bytes>
size_t prefix_of(std::string_view text, Bytes bytes) {
  size_t done = 0;
  while (done < text.size()) {
    const size_t n = bytes(text.substr(done));
    if (n == 0) break;
    done += n;
  }
  return done;
}

}  // namespace

size_t utf8_prefix(std::string_view text) { return prefix_of(text, character_bytes); }

size_t clean_prefix(std::string_view text) { return prefix_of(text, clean_character_bytes); }

std::string clean_text(std::string_view text, size_t bytes_max) {
  std::string clean;
  clean.reserve(std::min(text.size(), bytes_max));
  size_t done = 0;
  while (done < text.size()) {
    const size_t n = clean_character_bytes(text.substr(done));
    if (clean.size() + std::max<size_t>(n, 1) > bytes_max) break;
    if (n == 0) {
      clean += '?';
    } else {
      clean += text.substr(done, n);
    }
    done += std::max<size_t>(n, 1);
  }
  return clean;
}

std::string version_text(uint32_t version) {
  return absl::StrCat(version >> 16, ".", version & 0xffffu);
}

}  // namespace varve
