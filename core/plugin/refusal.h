// How the host says no to a plugin: rule, who, what it wants, what there is, what to do.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace varve {

struct Refusal {
  const char* rule;  // "MRI-E012"; mri/README.md lists them
  std::string who;   // plugin id or path
  std::string what;  // what is wrong: "version range"
  std::string wants;
  std::string has;
  std::string do_this;
};

// "MRI-E012 com.acme.lru: version range: wants MRI 1.1..1.1, this host has 1.0..1.0. Rebuild …"
absl::Status refused(const Refusal& refusal);
// The same as NOT_FOUND.
absl::Status not_found(const Refusal& refusal);

}  // namespace varve
