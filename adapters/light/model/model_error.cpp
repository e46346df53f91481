#include "adapters/light/model/model_error.h"

#include <algorithm>
#include <utility>

namespace varve::light {

void throw_model_error(std::string text) {
  constexpr size_t kMaxBytes = 1000;
  if (text.size() > kMaxBytes) text = text.substr(0, kMaxBytes) + "...";
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  throw ModelError(std::move(text));
}

}  // namespace varve::light
