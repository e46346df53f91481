#include "adapters/light/model/json_text.h"

#include <span>
#include <unordered_set>
#include <vector>

#include "adapters/light/model/file.h"
#include "adapters/light/model/model_error.h"

namespace varve::light {

using nlohmann::json;

json parse_json(const std::string& text, const std::string& name) {
  constexpr int kMaxDepth = 64;
  std::vector<std::unordered_set<std::string>> keys;
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    if (depth >= kMaxDepth) refuse(name, ": JSON nested deeper than ", kMaxDepth);
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      refuse(name, ": key '", value.get<std::string>(), "' appears twice");
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& e) {
    refuse(name, ": not valid JSON: ", e.what());
  }
}

std::string read_text(const std::string& path) {
  constexpr uint64_t kMaxBytes = 16u << 20;
  const File file(path);
  if (file.size() > kMaxBytes)
    refuse(path, ": ", file.size(), " bytes; at most ", kMaxBytes, " are accepted");
  std::string text(file.size(), '\0');
  if (!file.read_at(0, std::as_writable_bytes(std::span(text)))) refuse(path, ": cannot be read");
  return text;
}

json read_json(const std::string& path) { return parse_json(read_text(path), path); }

}  // namespace varve::light
