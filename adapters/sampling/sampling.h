// mri.sampling/1 for runtimes that have libllama's vocabulary: its samplers, and grammars.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mri/ext/sampling.h"

struct llama_vocab;

namespace varve::sampling {

class Sampler;

// The tokens' bytes one after another, and which tokens end an answer.
struct Vocabulary {
  std::string text;
  std::vector<uint32_t> starts = {0};  // [token + 1]; control tokens and such have no bytes
  std::vector<bool> is_end;

  std::string_view bytes(size_t token) const {
    return std::string_view(text).substr(starts[token], starts[token + 1] - starts[token]);
  }
};

// All samplers of a runtime; methods as mri::kind::sampling (mri/sdk/runtime.hpp) wants them.
// Throws mri::Error. [any; one call at a time per sampler, others wait]
class Samplers {
 public:
  // `n_logits`: numbers per row of logits, which may be more or fewer than there are tokens. The
  // vocabulary is needed only here.
  Samplers(const llama_vocab* vocabulary, uint32_t n_logits);
  ~Samplers();

  uint64_t create(const mri_sampler_req& req);
  int32_t sample(uint64_t sampler, const float* logits);
  void accept(uint64_t sampler, std::span<const int32_t> tokens);
  void release(uint64_t sampler);

 private:
  std::shared_ptr<Sampler> find(uint64_t number);

  const uint32_t n_logits_;
  Vocabulary vocabulary_;
  std::mutex mutex_;
  uint64_t next_ = 1;
  std::unordered_map<uint64_t, std::shared_ptr<Sampler>> samplers_;
};

}  // namespace varve::sampling
