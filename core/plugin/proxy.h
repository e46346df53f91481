// Tables that stand in for a plugin's own: same functions, but state, thread rule, sizes, answers
// and exceptions are checked on the way. Everything outside core/plugin calls plugins through
// these.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "core/base/mutex.h"
#include "core/plugin/guard.h"
#include "mri/ext/memory.h"
#include "mri/ext/sampling.h"
#include "mri/ext/text.h"
#include "mri/ext/timings.h"
#include "mri/kind/attention.h"
#include "mri/kind/batching.h"
#include "mri/kind/kv_tier.h"
#include "mri/kind/quantizer.h"
#include "mri/kind/runtime.h"
#include "mri/kind/summary.h"

namespace varve {

// Contexts with a [step:ctx] call under way.
class ActiveContexts {
 public:
  // Adds all of `contexts` or none: then returns the one that is there already (or twice;
  // UINT64_MAX for the number 0). 0 on success.
  uint64_t enter(std::span<const uint64_t> contexts);
  void leave(std::span<const uint64_t> contexts);

 private:
  Mutex mutex_;
  absl::flat_hash_set<uint64_t> active_ ABSL_GUARDED_BY(mutex_);
};

// What the host knows of how long contexts are: from init_context or reuse on, at most.
class ContextLengths {
 public:
  void begin(uint64_t ctx, uint64_t n_tokens);
  void grow(uint64_t ctx, uint64_t n_tokens);  // nothing where there is no such context
  void end(uint64_t ctx);
  // The most tokens that an eviction of `ranges` can take, whatever its granularity.
  uint64_t evictable(uint64_t ctx, std::span<const mri_token_range> ranges) const;

 private:
  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, uint64_t> lengths_ ABSL_GUARDED_BY(mutex_);
};

// `self` of every proxy: one plugin.
struct PluginPort {
  PluginPort(std::string who, LogSink log) : guard(std::move(who), std::move(log)) {}

  PluginGuard guard;
  void* self = nullptr;         // the plugin's
  const void* table = nullptr;  // the plugin's, of its kind's interface
  // The plugin's, of runtimes that have them complete.
  const mri_text_v1* text = nullptr;
  const mri_sampling_v1* sampling = nullptr;
  const mri_memory_v1* memory = nullptr;
  const mri_timings_v1* timings = nullptr;
  uint32_t negotiated = 0;
  // Of runtimes.
  ActiveContexts contexts;
  ContextLengths lengths;
};

extern const mri_quantizer_v1 kQuantizerProxy;
extern const mri_attention_v1 kAttentionProxy;
extern const mri_kv_tier_v1 kKvTierProxy;
extern const mri_summary_v1 kSummaryProxy;
extern const mri_batching_v1 kBatchingProxy;
// init_context: progress comes through in the caller's thread alone. evict_kv: confirm_* of an
// answer without them, or with an unknown value, reads MRI_CONFIRM_UNKNOWN; more tokens than the
// context has there is MRI_E_INTERNAL.
extern const mri_runtime_v1 kRuntimeProxy;
extern const mri_text_v1 kTextProxy;
extern const mri_sampling_v1 kSamplingProxy;
// reuse: a context whose n_tokens cannot be is released before the error is told.
extern const mri_memory_v1 kMemoryProxy;
extern const mri_timings_v1 kTimingsProxy;

// The interface that a plugin of a kind must offer. Tables are {u32 size, u32 reserved, functions}.
struct KindInterface {
  std::string_view kind;
  const char* id;
  uint32_t table_bytes;
  const void* proxy;
};

// nullptr for an unknown kind.
const KindInterface* kind_interface(std::string_view kind);

// An interface that a runtime may offer besides its kind's.
struct OptionalInterface {
  const char* id;
  const void* proxy;
  // Keeps `table` in the port if it is complete.
  void (*accept)(PluginPort& port, const void* table);
  bool (*is_offered)(const PluginPort& port);
};
std::span<const OptionalInterface> optional_interfaces();

// Is `table` complete: `bytes` long at least, no null function from `first_function` on?
bool is_complete(const void* table, uint32_t bytes, uint32_t first_function);

}  // namespace varve
