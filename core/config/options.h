// The host's own keys of a profile as plain structs.
#pragma once

#include <cstdint>
#include <string>

#include "core/config/profile.h"

namespace varve {

// [runtime], without what belongs to the plugin.
struct RuntimeOptions {
  uint32_t threads = 0;  // 0: one per core
  uint32_t prefill_chunk_tokens = 0;
  uint64_t kv_budget_bytes = 0;  // 0: no limit
  uint64_t max_tokens = 0;       // 0: what the runtime allows
};

// [generate]
struct GenerateOptions {
  uint64_t max_tokens = 0;
  double temperature = 0;
  double top_p = 1;
  uint64_t seed = 0;
  std::string system_prompt;
};

RuntimeOptions runtime_options(const Profile& profile);
GenerateOptions generate_options(const Profile& profile);

}  // namespace varve
