// A stack: one plugin per kind, opened, wired to each other and activated.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/value.h"
#include "core/plugin/host.h"
#include "core/plugin/library.h"
#include "core/plugin/proxy.h"
#include "core/plugin/worker.h"
#include "mri/ext/kernels.h"
#include "mri/sdk/host.hpp"

namespace varve {

struct PluginChoice {
  std::string kind;
  std::string name;                                   // or an absolute path
  std::vector<std::pair<std::string, Value>> params;  // others keep the plugin's default
  Isolation isolation = {};
  Trust trust = {};  // also in the fallback
};

struct StackSpec {
  std::vector<std::string> plugin_directories;  // searched in order
  // At most one of each kind, except summaries; a runtime is usual but not required.
  std::vector<PluginChoice> plugins;
  HostServices services;
  VersionRange host_versions;
  const mri_kernels_v1* kernels = nullptr;  // offered when there is no runtime that has its own
};

struct PluginReport {
  PluginInfo info;
  mri_caps caps;
  uint64_t misbehaved = 0;  // deaths and late answers of its own process included
  uint64_t buffer_bytes = 0;
  std::vector<MetricSample> metrics;
  std::optional<WorkerStatus> worker;  // of a plugin with a process of its own
};

// Destruction drains and closes the plugins, the runtime first: it is the one that calls the
// others. Methods may be called from any thread.
class Stack {
 public:
  ~Stack();
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  // Checked tables (proxy.h) of the stack's plugins; empty when there is none. Usable until the
  // stack is destroyed.
  mri::Peer<mri_runtime_v1> runtime() const { return peer<mri_runtime_v1>(MRI_RUNTIME); }
  mri::Peer<mri_text_v1> text() const { return peer<mri_text_v1>(MRI_TEXT); }
  mri::Peer<mri_sampling_v1> sampling() const { return peer<mri_sampling_v1>(MRI_SAMPLING); }
  mri::Peer<mri_memory_v1> memory() const { return peer<mri_memory_v1>(MRI_MEMORY); }
  mri::Peer<mri_timings_v1> timings() const { return peer<mri_timings_v1>(MRI_TIMINGS); }
  mri::Peer<mri_batching_v1> batching() const { return peer<mri_batching_v1>(MRI_BATCHING); }
  template <class Table>
  mri::Peer<Table> peer(const char* id, uint32_t ordinal = 0) const {
    mri::Peer<Table> found;
    found.table = static_cast<const Table*>(find(id, ordinal, &found.self));
    return found;
  }
  // Unchecked: the runtime's own table, or the spec's; null when there is neither.
  const mri_kernels_v1* kernels() const;
  // The pool that the plugins compute on; may be null.
  ThreadPool* threads() const { return spec_.services.threads; }

  // In the order of StackSpec::plugins, the runtime first.
  std::vector<PluginReport> report() const;

 private:
  friend absl::StatusOr<std::unique_ptr<Stack>> load_stack(const StackSpec& spec);
  struct Member;

  explicit Stack(const StackSpec& spec);
  absl::Status open(const PluginChoice& choice);
  absl::StatusOr<std::unique_ptr<Member>> find_member(const PluginChoice& choice) const;
  absl::Status open(Member& member);
  absl::Status open_fallback(Member& member);
  absl::Status activate(Member& member);
  const void* find(std::string_view id, uint32_t ordinal, void** self) const;

  const StackSpec spec_;
  std::vector<std::unique_ptr<Member>> members_;  // in order of opening: the runtime first
};

// Opens the runtime first, so that the others find its kernels, and activates it last, so that it
// finds them all. On error nothing stays open. Messages name rule, plugin, found and expected.
absl::StatusOr<std::unique_ptr<Stack>> load_stack(const StackSpec& spec);

}  // namespace varve
