// Who asks: what an API key stands for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace varve {

// What a route needs, and a key grants. Each includes those before it.
enum class Scope { kPublic, kInference, kAdmin };

struct Identity {
  std::string key_id;  // the key's name in the file, for logs; never the key
  std::string tenant;
  std::string class_name;
  std::vector<std::string> tier_classes;  // classes a service_tier may choose instead
  Scope scope = Scope::kPublic;
};

}  // namespace varve
