// light_stack.h: a light engine on a small model, with real plugins, through the host's loader.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/thread_pool.h"
#include "core/plugin/stack.h"
#include "mri/kind/runtime.h"

namespace varve::test {

using Params = std::vector<std::pair<std::string, Value>>;

// What a test wants different from: light, kv_tier full, quantizer int8, attention dense, no
// summary.
struct LightStackOptions {
  std::string model_path;
  std::string runtime = "light";
  std::string tier = "full", quantizer = "int8", attention = "dense", summary;
  Params runtime_params, tier_params, attention_params, summary_params;
  uint32_t threads = 2;
};

// The runtime of a loaded stack as calls with values. Throws std::runtime_error with the text of a
// refusal.
class LightStack {
 public:
  explicit LightStack(const LightStackOptions& options);

  // A status and, when it is not MRI_OK, its text.
  struct Result {
    mri_status status = MRI_OK;
    std::string text;
  };

  Result init(std::span<const int32_t> tokens, uint64_t* ctx, float* logits = nullptr,
              uint64_t budget_bytes = 0, uint32_t chunk_tokens = 0,
              const mri_token_range* pinned = nullptr, mri_init_rsp* out = nullptr);
  Result step(uint64_t ctx, std::span<const int32_t> tokens, float* logits = nullptr,
              bool all_logits = false, mri_kv_usage* usage = nullptr);
  Result evict(uint64_t ctx, mri_token_range range, uint32_t granularity, mri_evict_rsp* out);
  Result summary(uint64_t ctx, std::vector<mri_kv_block_info>* out, mri_summary_rsp* rsp = nullptr);
  void release(uint64_t ctx) { runtime_.table->release_context(runtime_.self, ctx); }

  const mri::Peer<mri_runtime_v1>& runtime() const { return runtime_; }
  Stack& stack() { return *stack_; }

 private:
  ThreadPool threads_;
  std::unique_ptr<Stack> stack_;
  mri::Peer<mri_runtime_v1> runtime_;
};

// n tokens of the small models' vocabulary (0..259), from a seed.
std::vector<int32_t> random_tokens(size_t n, uint64_t seed = 1);

}  // namespace varve::test
