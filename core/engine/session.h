// One conversation with a loaded model: a context of a runtime and the logits after its last token.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/engine/sampler.h"
#include "core/engine/text.h"
#include "mri/kind/runtime.h"

namespace varve {

struct SessionOptions {
  uint32_t chunk_tokens = 0;  // prefill step; 0: the runtime's default
  uint64_t budget_bytes = 0;  // of keys and values; 0: the runtime's share
  uint64_t max_tokens = 0;    // longest the context may become; 0: the runtime's limit
  uint64_t seed = 0;
  std::function<void(uint64_t done, uint64_t n)>
      progress;                                   // in the calling thread, after each chunk
  const std::atomic<uint32_t>* cancel = nullptr;  // non-zero stops the call under way (kCancelled)
};

// One thread at a time. Different sessions of a runtime are independent.
class Session {
 public:
  // Reads the prompt (at least one token). `n_vocabulary` is mri_model_info.vocab_size.
  static absl::StatusOr<std::unique_ptr<Session>> start(const mri_runtime_v1* runtime, void* self,
                                                        uint64_t n_vocabulary,
                                                        std::span<const int32_t> prompt,
                                                        SessionOptions options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Appends tokens; logits() are then those after the last one. After an error the session only
  // serves its destructor.
  absl::Status append(std::span<const int32_t> tokens);

  // Takes tokens [first, first + count) out of the memory; later ones keep their positions, and
  // sinks stay. Logits are not computed anew.
  absl::Status forget(uint64_t first, uint64_t count);

  // Every block of the text, in order. Legal right after start(), before append(); else
  // kFailedPrecondition.
  absl::StatusOr<std::vector<mri_kv_block_info>> blocks() const;

  std::span<const float> logits() const { return logits_; }  // [vocabulary]
  const mri_kv_usage& usage() const { return usage_; }       // after the last call
  uint64_t n_tokens() const { return n_tokens_; }
  uint64_t context() const { return ctx_; }

 private:
  Session(const mri_runtime_v1* runtime, void* self, SessionOptions options)
      : runtime_(runtime), self_(self), options_(std::move(options)) {}
  absl::Status init(std::span<const int32_t> prompt);
  const uint32_t* cancel_flag() const;

  const mri_runtime_v1* runtime_;
  void* self_;
  SessionOptions options_;
  std::vector<float> logits_;
  mri_kv_usage usage_{};
  uint64_t ctx_ = 0;
  uint64_t n_tokens_ = 0;
  uint64_t n_steps_ = 0;
};

enum class Finish { kEnd, kLength };  // the model ended its answer, or max_tokens were written

struct Answer {
  std::string text;
  uint64_t n_tokens = 0;  // without the end token
  Finish finish = Finish::kEnd;
};

// Writes an answer of at most `max_tokens`. `on_text` gets each piece of text as soon as it is
// complete UTF-8.
absl::StatusOr<Answer> generate(Session& session, const Text& text, Sampler& sampler,
                                uint64_t max_tokens,
                                const std::function<void(std::string_view)>& on_text);

}  // namespace varve
