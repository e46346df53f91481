// One answer while it grows: from logits to pieces of text, and why it ended.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/engine/request.h"
#include "core/engine/sampler.h"
#include "core/engine/text.h"

namespace varve {

// What the model makes of one position: the logprob of `token` and the n_top likeliest tokens, ties
// to the lower number, from a log-softmax of the raw logits. NaN counts as -inf.
TokenLogprob token_logprob(std::span<const float> logits, int32_t token, uint32_t n_top);

// Text on its way out: held back while it may begin a stop text or ends inside a UTF-8 sequence.
class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stops);

  struct Out {
    std::string text;                 // may be told now
    std::optional<std::string> stop;  // the text ends here; what came after is lost
  };
  // `may_stop` false: a stop text that is complete now is ordinary text.
  Out add(std::string_view bytes, bool may_stop);
  std::string rest();  // what is held back, at the end

 private:
  std::vector<std::string> stops_;
  std::string held_;
};

struct GenerationLimits {
  uint64_t max_tokens = 0, min_tokens = 0;
  bool ignore_end = false;
  std::vector<std::string> stop;
  int n_logprobs = -1;
};

// One thread at a time.
class Generation {
 public:
  // `end_tokens`: those that end an answer. Both pointers outlive the generation.
  Generation(GenerationLimits limits, std::unique_ptr<Sampler> sampler, const Text* text,
             const std::vector<int32_t>* end_tokens);

  struct Next {
    std::optional<Piece> piece;       // none for an end token, unless text was held back
    std::optional<int32_t> token;     // goes into the context before the next step; none at the end
    std::optional<FinishReason> end;  // kStop or kLength
    std::string stop;                 // the stop text that ended it
  };
  // Draws from the logits after the last token (they are changed). An error ends the sequence.
  absl::StatusOr<Next> next(std::span<float> logits);

  // What is held back, where the answer is cut off. None when there is nothing.
  std::optional<Piece> rest();

  uint64_t n_tokens() const { return n_tokens_; }  // of the answer, without an end token

 private:
  Next end_with(FinishReason reason, int32_t token);
  bool is_end(int32_t token) const;

  const GenerationLimits limits_;
  const std::unique_ptr<Sampler> sampler_;
  const Text* const text_;
  const std::vector<int32_t>* const end_tokens_;
  StopFilter filter_;
  uint64_t n_tokens_ = 0;
};

}  // namespace varve
