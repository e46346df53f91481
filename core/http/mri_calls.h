// The four methods of MRI as calls with JSON in and out. Private to core/http/mri_*.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/engine/turnstile.h"
#include "core/http/mri_contexts.h"
#include "core/http/mri_frame.h"

namespace varve::http {

// Most that one call may take or return.
struct MriLimits {
  size_t contexts_per_tenant = 16;
  size_t calls_per_tenant = 32;
  std::chrono::milliseconds idle_timeout = std::chrono::minutes(10);
  std::chrono::milliseconds sweep_interval = std::chrono::seconds(30);
  uint64_t step_tokens = 1024;  // more would hold the turnstile for too long
  uint64_t step_sequences = 64;
  uint64_t logits_bytes = 64 << 20;
  uint64_t json_logits_bytes = 8 << 20;  // as text they take several times as much
  uint64_t ranges = 4096;
  uint64_t blocks = 1 << 20;
};

using MriCancel = std::shared_ptr<std::atomic<uint32_t>>;

struct MriInit {
  uint64_t context_key = 0, seed = 0, max_tokens = 0, budget_bytes = 0;
  uint32_t chunk_tokens = 0;
  std::vector<int32_t> tokens;
  std::vector<mri_token_range> pinned;
  bool logits = false;
};
absl::StatusOr<MriInit> parse_init(const MriFrame& frame, const MriLimits& limits);

struct MriStepSeq {
  uint64_t ctx = 0;
  std::vector<int32_t> tokens;
  bool logits = false, all_logits = false;
  uint32_t flags = 0;
  std::shared_ptr<MriContext> context;  // found by the caller
};
struct MriStep {
  uint64_t step_id = 0;
  std::vector<MriStepSeq> seqs;
};
absl::StatusOr<MriStep> parse_step(const MriFrame& frame, const MriLimits& limits);

struct MriSummary {
  uint64_t ctx = 0, first_token = 0, n_tokens = 0;
  uint32_t what = 0;
};
absl::StatusOr<MriSummary> parse_summary(const MriFrame& frame);

struct MriEvict {
  uint64_t ctx = 0, request_id = 0;
  std::vector<mri_token_range> ranges;
  uint32_t granularity = 0, reason = 0;
};
absl::StatusOr<MriEvict> parse_evict(const MriFrame& frame, const MriLimits& limits);

// Each runs in the calling thread and returns the body. `turnstile` may be null. run_init sets
// context->ctx and `usage` on success; run_step and run_evict keep the contexts' `held` up to date.
absl::StatusOr<nlohmann::json> run_init(const MriInit& init, MriContext* context,
                                        Turnstile* turnstile, const MriCancel& cancel,
                                        MriAnswer* answer, mri_kv_usage* usage);
absl::StatusOr<nlohmann::json> run_step(const MriStep& step, const MriLimits& limits,
                                        Turnstile* turnstile, const MriCancel& cancel,
                                        MriAnswer* answer);
absl::StatusOr<nlohmann::json> run_summary(const MriSummary& summary, const MriContext& context,
                                           const MriLimits& limits);
// `served`: MRI_1_0 answers have no confirmation, MRI_1_1 ones always do.
absl::StatusOr<nlohmann::json> run_evict(const MriEvict& evict, MriContext& context,
                                         uint32_t served);

}  // namespace varve::http
