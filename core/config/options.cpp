#include "core/config/options.h"

namespace varve {
namespace {

uint64_t unsigned_integer(const Profile& profile, std::string_view table, std::string_view key) {
  return static_cast<uint64_t>(
      profile.integer(table, key));  // the key's range starts at 0 or above
}

}  // namespace

RuntimeOptions runtime_options(const Profile& profile) {
  RuntimeOptions options;
  options.threads = static_cast<uint32_t>(profile.integer("runtime", "threads"));
  options.prefill_chunk_tokens =
      static_cast<uint32_t>(profile.integer("runtime", "prefill_chunk_tokens"));
  options.kv_budget_bytes = unsigned_integer(profile, "runtime", "kv_budget_mb") << 20;
  options.max_tokens = unsigned_integer(profile, "runtime", "max_tokens");
  return options;
}

GenerateOptions generate_options(const Profile& profile) {
  GenerateOptions options;
  options.max_tokens = unsigned_integer(profile, "generate", "max_tokens");
  options.temperature = profile.number("generate", "temperature");
  options.top_p = profile.number("generate", "top_p");
  options.seed = unsigned_integer(profile, "generate", "seed");
  options.system_prompt = profile.text("generate", "system_prompt");
  return options;
}

}  // namespace varve
