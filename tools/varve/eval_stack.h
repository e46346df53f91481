// The stacks that a profile's own one is compared with, and steps that keep every logit.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/profile.h"
#include "core/engine/session.h"
#include "tools/varve/model.h"

namespace varve::cli {

using Settings = std::vector<std::string>;  // "table.key=value"

// The profile with other plugins: `tables` lose what the command line sets for them (their new
// plugins know other keys), then `settings` hold above everything.
absl::StatusOr<Profile> variant_profile(ProfileSources sources,
                                        const std::vector<std::string>& tables,
                                        const Settings& settings);

// The same runtime with everything hot and read by every query at its true position.
absl::StatusOr<Profile> exact_profile(const ProfileSources& sources);

// llama.cpp on `model_path`; `settings` as "runtime.kv_type=f32". The thread count stays.
absl::StatusOr<Profile> peer_profile(const ProfileSources& sources, const std::string& model_path,
                                     const Settings& settings);

// Appends `tokens`; `logits` get [tokens][vocabulary], those after each of them.
absl::Status append_all_logits(const mri::Peer<mri_runtime_v1>& runtime, const Session& session,
                               std::span<const int32_t> tokens, std::span<float> logits);

}  // namespace varve::cli
