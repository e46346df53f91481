// A profile's stack, loaded, with the model's facts: what every command that runs a model starts
// from.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/base/thread_pool.h"
#include "core/config/profile.h"
#include "core/engine/session.h"
#include "core/engine/text.h"
#include "core/plugin/stack.h"
#include "tools/varve/chosen_plugins.h"

namespace varve::cli {

struct LoadedStack {
  std::unique_ptr<ThreadPool> threads;  // outlives the stack
  std::unique_ptr<Stack> stack;
  mri::Peer<mri_runtime_v1> runtime;  // never empty
};

struct Model : LoadedStack {
  Text text;
  mri_model_info info;
  uint64_t
      max_tokens;  // longest context: [runtime] max_tokens, but no more than the runtime's limit

  absl::StatusOr<std::unique_ptr<Session>> start(std::span<const int32_t> prompt,
                                                 SessionOptions options) const {
    return Session::start(runtime.table, runtime.self, info.vocab_size, prompt, std::move(options));
  }
};

// Starts plugins found before; the pool outlives the stack.
absl::StatusOr<std::unique_ptr<Stack>> load_chosen_stack(std::vector<ChosenPlugin> plugins,
                                                         ThreadPool& threads, LogSink log);

// Starts the plugins that the profile names. Warnings of plugins go to stderr.
absl::StatusOr<LoadedStack> load_profile_stack(const Profile& profile);

// The same for a runtime that must have a vocabulary.
absl::StatusOr<Model> load_model(const Profile& profile);

}  // namespace varve::cli
