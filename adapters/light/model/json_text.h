#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace varve::light {

// Parses JSON from a file of at most 16 MiB whose values nest at most 64 deep and whose objects
// have no duplicate keys. Throws ModelError with the byte at fault; `name` starts the message.
nlohmann::json parse_json(const std::string& text, const std::string& name);
nlohmann::json read_json(const std::string& path);
std::string read_text(const std::string& path);

}  // namespace varve::light
