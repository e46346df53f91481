// One sequence to generate, what is told while it goes, and what is known at its end.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/engine/sampler.h"
#include "mri/ext/timings.h"
#include "mri/kind/runtime.h"

namespace varve {

struct GenerateRequest {
  std::string id;      // request id; several choices of one request share it
  std::string tenant;  // whose it is: fair share and prefix sharing end here
  std::string class_name;
  std::string arm;              // of an experiment, or empty; a label for records
  uint32_t priority = 0;        // larger is served first
  bool is_shadow = false;       // replay: served when nothing else waits, dropped first
  std::vector<int32_t> prompt;  // at least one token
  SamplerOptions sampling;
  // Of the answer; 0: only read the prompt (for prompt_logprobs, contexts).
  uint64_t max_tokens = 0;
  uint64_t min_tokens = 0;        // no end token before this many
  bool ignore_end = false;        // go on past end tokens
  std::vector<std::string> stop;  // the text ends before the first of these
  int n_logprobs = -1;            // alternatives told per token of the answer; -1: no logprobs
  int n_prompt_logprobs = -1;     // the same for the prompt's tokens from the second on
  bool wants_timings = false;
  bool keeps_prefix = true;  // share and keep blocks inside the tenant
  bool pins_prefix = false;  // keep them until forgotten: a registered context
  absl::Time deadline = absl::InfiniteFuture();
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;  // natural, of the model's own distribution (before temperature and bias)
  std::vector<std::pair<int32_t, float>> top;  // likeliest first
};

// One token of the answer. `text` may be empty (inside a UTF-8 sequence, or held back since a stop
// may begin in it) and may carry what earlier tokens held back.
struct Piece {
  int32_t token = 0;
  std::string text;
  std::vector<TokenLogprob> logprobs;  // one, or none when not asked for
};

enum class FinishReason { kStop, kLength, kCancelled, kError };

// What is known when a sequence has ended: the source of metrics, logs and experiments.
struct GenerateResult {
  absl::Status status;  // not OK with kError and kCancelled
  FinishReason reason = FinishReason::kError;
  std::string stop;  // which stop text ended it, or empty
  uint64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  absl::Time arrived, started, first_token, ended;  // InfinitePast where it did not come so far
  std::vector<float> token_gaps_ms;                 // between tokens, from the second on
  mri_kv_usage usage{};
  bool has_timings = false;
  mri_timings timings{};
  uint32_t demotions = 0;  // times it gave memory away for a request of higher priority
};

// Where a sequence's news goes. Called by the lane's thread, one call at a time, in this order:
// on_prompt_progress*, on_prompt_logprobs?, on_piece*, on_end. Must not block. Nothing is called
// after on_end; on_end is always called exactly once for a submitted request.
class GenerateSink {
 public:
  virtual ~GenerateSink() = default;
  virtual void on_prompt_progress(uint64_t done_tokens, uint64_t n_tokens, uint64_t cached_tokens) {
    (void)done_tokens, (void)n_tokens, (void)cached_tokens;
  }
  // For tokens [1, n) of the prompt, at once.
  virtual void on_prompt_logprobs(std::vector<TokenLogprob> logprobs) { (void)logprobs; }
  virtual void on_piece(Piece piece) = 0;
  virtual void on_end(const GenerateResult& result) = 0;
};

// Any thread may set it; the lane looks at it at each step, the runtime between layers.
using CancelFlag = std::shared_ptr<std::atomic<uint32_t>>;

}  // namespace varve
