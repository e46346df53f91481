#include "core/plugin/isolation.h"

#include "absl/strings/str_cat.h"
#include "core/plugin/worker.h"

namespace varve {

std::string why_not_isolated(std::string_view kind, const Isolation& isolation) {
  if (worker_table(kind) == nullptr) {
    return absl::StrCat("a plugin of kind ", std::string(kind),
                        " works on the runtime's memory, which another process does not have; "
                        "expected kv_tier, quantizer, summary or batching");
  }
  if (kind == "quantizer" && !isolation.fallback.empty()) {
    return "a quantizer has no fallback: nothing else can read the pages that it has written";
  }
  return "";
}

absl::StatusOr<Isolation> isolation_of(const Profile& profile, std::string_view table) {
  Isolation isolation;
  isolation.is_worker = profile.text(table, "isolation") == "worker";
  if (!isolation.is_worker) return isolation;
  const auto value = [&](const char* key) { return profile.find(table, key); };
  if (const Setting* fallback = value("fallback"))
    isolation.fallback = std::get<std::string>(fallback->value);
  if (const std::string why = why_not_isolated(table, isolation); !why.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(value("isolation")->where, ": ",
                                                   std::string(table),
                                                   ".isolation: found \"worker\"; ", why));
  }
  isolation.deadline_ms = static_cast<uint64_t>(profile.integer(table, "worker_deadline_ms"));
  isolation.memory_mb = static_cast<uint64_t>(profile.integer(table, "worker_memory_mb"));
  isolation.failures_max = static_cast<uint32_t>(profile.integer(table, "worker_failures_max"));
  isolation.backoff_ms = static_cast<uint64_t>(profile.integer(table, "worker_backoff_ms"));
  absl::StatusOr<std::string> program = profile.path("plugins", "worker_path");
  if (!program.ok()) return program.status();
  isolation.program = *std::move(program);
  return isolation;
}

}  // namespace varve
