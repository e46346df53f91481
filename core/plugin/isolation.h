// Where a plugin runs: in this process, or in one of its own (worker.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/base/limits.h"
#include "core/config/profile.h"

namespace varve {

struct Isolation {
  bool is_worker = false;
  uint64_t deadline_ms = 1000;  // of one call
  uint64_t memory_mb = 0;       // address space of the worker; 0: no limit
  std::string fallback;         // name of a plugin of the same kind, run in this process; or empty
  std::string program;          // mri-worker; empty: the one beside this program
  uint32_t failures_max = kWorkerFailuresMax;
  uint64_t backoff_ms = kWorkerBackoffMs;
};

// Why a plugin of this kind cannot run in a worker; "" when it can.
std::string why_not_isolated(std::string_view kind, const Isolation& isolation);

// What the table of a plugin kind says. The error names the place.
absl::StatusOr<Isolation> isolation_of(const Profile& profile, std::string_view table);

}  // namespace varve
