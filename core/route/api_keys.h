// API keys: a TOML file of SHA-256 digests with what each key may do.
//
//   [key.team-a]
//   sha256 = "…64 hex digits…"        # printf %s "$KEY" | sha256sum
//   tenant = "team-a"
//   class = "vip"
//   tiers = ["priority:vip", "flex:batch"]   # service_tier -> class
//   scope = "inference"               # or "admin"
//   requests_per_minute = 600         # 0: no limit
//   tokens_per_minute = 100000        # prompt and answer; 0: no limit
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/config/serve_config.h"
#include "core/route/identity.h"

namespace varve {

class ApiKeys {
 public:
  // `classes`: the names that exist. Errors name file, line, key.
  static absl::StatusOr<std::shared_ptr<const ApiKeys>> load(
      const std::string& path, const std::vector<std::string>& classes);
  virtual ~ApiKeys() = default;
  // Digests are compared in constant time, all of them each time. kUnauthenticated otherwise.
  virtual absl::StatusOr<Identity> find(std::string_view key) const = 0;
  // The class for a service_tier ("auto" and "default" are the key's own); kPermissionDenied when
  // the key does not allow the tier.
  virtual absl::StatusOr<std::string> class_for_tier(const Identity& who,
                                                     std::string_view tier) const = 0;
  struct Limits {
    uint64_t requests_per_minute = 0, tokens_per_minute = 0;
  };
  virtual Limits limits(std::string_view key_id) const = 0;
};

// Those of a configuration; null when it names no file.
absl::StatusOr<std::shared_ptr<const ApiKeys>> load_keys(const ServeConfig& config);

// Token buckets per key. Thread-safe; monotonic clock given by the caller.
class Quotas {
 public:
  virtual ~Quotas() = default;
  static std::unique_ptr<Quotas> make();
  // OK and counted, or kResourceExhausted with the wait in *retry_after. `tokens`: prompt plus the
  // most that may be answered; refund() gives back what was not used.
  virtual absl::Status take(std::string_view key_id, const ApiKeys::Limits& limits, uint64_t tokens,
                            absl::Time now, absl::Duration* retry_after) = 0;
  virtual void refund(std::string_view key_id, uint64_t tokens) = 0;
};

}  // namespace varve
