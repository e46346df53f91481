#include <algorithm>

#include "adapters/light/model/tokenizer.h"

namespace varve::light {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Length of the well-formed character at the start of `bytes` (Unicode 15, table 3-7): 0 when it is
// malformed, -1 when it is the beginning of one.
int character_length(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  unsigned char low = 0x80, high = 0xBF;  // of the second byte
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return -1;
    if (at(i) < low || at(i) > high) return 0;
    low = 0x80;
    high = 0xBF;
  }
  return static_cast<int>(length);
}

}  // namespace

std::string TextStream::push(std::string_view bytes) {
  held_ += bytes;
  std::string out;
  size_t pos = 0;
  while (pos < held_.size()) {
    const int length = character_length(std::string_view(held_).substr(pos));
    if (length < 0) break;
    if (length == 0) {
      out += kReplacement;
      ++pos;
    } else {
      out.append(held_, pos, static_cast<size_t>(length));
      pos += static_cast<size_t>(length);
    }
  }
  held_.erase(0, pos);
  return out;
}

std::string TextStream::finish() {
  std::string out = held_.empty() ? "" : std::string(kReplacement);
  held_.clear();
  return out;
}

}  // namespace varve::light
