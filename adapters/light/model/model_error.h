#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace varve::light {

// A model file or folder that cannot be used: one line that names the file, the place, what was
// found and what was expected. Everything in adapters/light/model that reads outside data throws
// this and nothing else (besides std::bad_alloc); it never crosses the plugin boundary.
class ModelError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws ModelError. Control characters, which names from a file may hold, become '?'; overlong
// text is cut.
[[noreturn]] void throw_model_error(std::string text);

// The same with the arguments written one after the other.
template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw_model_error(text.str());
}

}  // namespace varve::light
