// engine.h: the LightEngine: one model, many contexts, one stack of plugins.
//
// Each context has a lease: init_context, forward_step, get_kv_summary and evict_kv hold it while
// they work, so that steps of different contexts run at once and an eviction has its whole cache to
// itself. No lock is held across a plugin call: the lease is a flag, the mutex only guards the
// table of contexts.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "adapters/light/forward/forward.h"
#include "adapters/light/forward/rope_tables.h"
#include "adapters/light/kv/cache.h"
#include "adapters/light/model/load_model.h"
#include "adapters/light/mutex.h"
#include "mri/ext/memory.h"
#include "mri/ext/timings.h"
#include "mri/kind/runtime.h"
#include "mri/sdk/host.hpp"

namespace varve::light {

struct EngineOptions {
  kernels::Compute compute = kernels::Compute::kBf16;
  KvStoreOptions kv;  // shape fields are filled from the model
  uint32_t max_tokens = 131072;
  uint32_t chunk_tokens = 4096;
  bool resident_weights = false;
  bool warm_up = true;
};

// Every public method is thread-safe and throws mri::Error.
class Engine {
 public:
  Engine(std::shared_ptr<const Model> model, const EngineOptions& options, const mri::Host& host);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Model& model() const { return *model_; }
  uint32_t max_tokens() const { return options_.max_tokens; }

  void init_context(const mri_init_req& req, mri_init_rsp& rsp);
  void forward_step(const mri_step_req& req, mri_step_rsp& rsp, mri_error* err);
  mri_status get_kv_summary(uint64_t ctx, const mri_summary_req& req, mri_summary_rsp& rsp);
  void evict_kv(uint64_t ctx, const mri_evict_req& req, mri_evict_rsp& rsp);
  void release_context(uint64_t ctx);

  // As in mri/ext/timings.h. MRI_E_STATE when nobody enabled them.
  void enable_timings(uint64_t ctx, bool on);
  void read_timings(uint64_t ctx, mri_timings& timings);
  // As in mri/ext/memory.h.
  void reuse(const mri_reuse_req& req, mri_reuse_rsp& rsp);
  void keep(uint64_t ctx, std::span<const mri_prefix_key> keys, uint32_t flags);
  void forget(const mri_prefix_key& last_key);
  uint64_t shrink(uint64_t ctx, uint64_t wanted_bytes);
  void memory_usage(mri_memory_usage& usage);

 private:
  struct Context;
  class Lease;

  uint64_t context_limit(uint64_t wanted) const;
  std::shared_ptr<const ResidentWeights> resident() const;
  void check_tokens(const int32_t* tokens, uint64_t n) const;
  void prefill(Context& context, const mri_init_req& req, mri_init_rsp& rsp);
  bool prefill_chunk(Context& context, const int32_t* tokens, uint32_t n, bool last,
                     const mri_init_req& req, uint64_t& retried);
  struct Batch;
  std::string step_sequences(std::span<mri_step_seq* const> seqs, const std::vector<Lease>& leases,
                             const uint32_t* cancel);
  void add_to_batch(mri_step_seq& seq, Context& context, const uint32_t* cancel, Batch& batch);
  void run_batch(Batch& batch, const uint32_t* cancel);
  void step_long(mri_step_seq& seq, Context& context, const uint32_t* cancel);

  std::shared_ptr<const Model> model_;
  EngineOptions options_;
  mri::Host host_;
  RopeTables rope_;
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<Forward> forward_;
  Mutex mutex_;
  std::condition_variable_any returned_;
  uint64_t next_ctx_ ABSL_GUARDED_BY(mutex_) = 1;
  std::unordered_map<uint64_t, std::unique_ptr<Context>> contexts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace varve::light
