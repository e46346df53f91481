#include "adapters/sampling/sampling.h"

#include <llama.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "adapters/sampling/grammar.h"
#include "mri/sdk/error.hpp"

namespace varve::sampling {
namespace {

constexpr uint32_t kPenaltyTokensMax = 1u << 20;

struct FreeSampler {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using Chain = std::unique_ptr<llama_sampler, FreeSampler>;

Chain new_chain() {
  llama_sampler_chain_params params = llama_sampler_chain_default_params();
  params.no_perf = true;
  return Chain(llama_sampler_chain_init(params));
}

// libllama takes 32 bits, of which one value means a seed by chance.
uint32_t seed_of(uint64_t seed) {
  const auto folded = static_cast<uint32_t>(seed ^ seed >> 32);
  return folded != LLAMA_DEFAULT_SEED ? folded : 0;
}

// What changes logits before a grammar looks at them.
Chain adjusting_chain(const mri_sampler_req& req, uint32_t n_logits) {
  Chain chain = new_chain();
  if (req.n_biases > 0) {
    std::vector<llama_logit_bias> biases;
    for (uint32_t i = 0; i < req.n_biases; ++i)
      biases.push_back({req.biases[i].token, req.biases[i].bias});
    llama_sampler_chain_add(chain.get(), llama_sampler_init_logit_bias(
                                             static_cast<int32_t>(n_logits),
                                             static_cast<int32_t>(biases.size()), biases.data()));
  }
  if (req.repetition_penalty != 1 || req.presence_penalty != 0 || req.frequency_penalty != 0) {
    llama_sampler_chain_add(
        chain.get(), llama_sampler_init_penalties(
                         static_cast<int32_t>(n_logits), static_cast<int32_t>(req.penalty_tokens),
                         req.repetition_penalty, req.frequency_penalty, req.presence_penalty));
  }
  return chain;
}

// llama_sampler_init_top_p sorts the whole vocabulary, which takes longer than everything else
// here together. Tokens of at most (1 - p) / n have 1 - p together at most, so that the cut lies
// above them.
void cut_to_nucleus(llama_sampler* sampler, llama_token_data_array* array) {
  const float p = *static_cast<const float*>(sampler->ctx);
  if (array->size == 0) return;
  llama_token_data* const first = array->data;
  llama_token_data* last = first + array->size;
  const auto less = [](const llama_token_data& a, const llama_token_data& b) {
    return a.logit < b.logit;
  };
  const float largest = std::max_element(first, last, less)->logit;
  double total = 0;
  for (llama_token_data* token = first; token != last; ++token)
    total += token->p = std::exp(token->logit - largest);
  const double unneeded = (1 - static_cast<double>(p)) * total / static_cast<double>(array->size);
  last = std::remove_if(first, last, [&](const llama_token_data& token) {
    return token.p <= unneeded && token.logit < largest;
  });
  std::sort(first, last, [](const llama_token_data& a, const llama_token_data& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  });
  double kept = 0;
  llama_token_data* end = first;
  while (end != last && (end == first || kept < p * total)) kept += (end++)->p;
  array->size = static_cast<size_t>(end - first);
  array->sorted = true;
}

llama_sampler* nucleus(float p) {
  static llama_sampler_i interface = [] {
    llama_sampler_i functions{};
    functions.name = [](const llama_sampler*) { return "nucleus"; };
    functions.apply = cut_to_nucleus;
    functions.free = [](llama_sampler* sampler) { delete static_cast<float*>(sampler->ctx); };
    return functions;
  }();
  return llama_sampler_init(&interface, new float(p));
}

// What picks one of those that are left.
Chain drawing_chain(const mri_sampler_req& req) {
  Chain chain = new_chain();
  const auto add = [&](llama_sampler* sampler) { llama_sampler_chain_add(chain.get(), sampler); };
  if (req.temperature <= 0) {
    add(llama_sampler_init_greedy());
    return chain;
  }
  if (req.top_k > 0)
    add(llama_sampler_init_top_k(static_cast<int32_t>(std::min(req.top_k, 1u << 30))));
  if (req.top_p < 1) add(nucleus(req.top_p));
  if (req.min_p > 0) add(llama_sampler_init_min_p(req.min_p, 1));
  if (req.temperature != 1) add(llama_sampler_init_temp(req.temperature));
  add(llama_sampler_init_dist(seed_of(req.seed)));
  return chain;
}

void check(const mri_sampler_req& req, uint32_t n_logits) {
  const auto need = [](bool is_met, const char* text) {
    if (!is_met) throw mri::Error(MRI_E_ARG, text);
  };
  need(req.n_biases == 0 || req.biases != nullptr, "biases: found a null pointer");
  for (uint32_t i = 0; i < req.n_biases; ++i) {
    const mri_logit_bias& bias = req.biases[i];
    need(bias.token >= 0 && static_cast<uint32_t>(bias.token) < n_logits && bias.bias < INFINITY,
         "biases: expected tokens of the vocabulary and numbers below +inf");
  }
  need(req.temperature >= 0 && req.temperature < INFINITY, "temperature: expected 0 or more");
  need(req.top_p >= 0 && req.top_p <= 1, "top_p: expected 0 to 1");
  need(req.min_p >= 0 && req.min_p <= 1, "min_p: expected 0 to 1");
  need(req.repetition_penalty > 0 && req.repetition_penalty < INFINITY,
       "repetition_penalty: expected more than 0");
  need(std::isfinite(req.presence_penalty) && std::isfinite(req.frequency_penalty),
       "presence_penalty, frequency_penalty: expected finite numbers");
  need(req.penalty_tokens <= kPenaltyTokensMax, "penalty_tokens: expected at most 1048576");
}

}  // namespace

class Sampler {
 public:
  Sampler(const mri_sampler_req& req, uint32_t n_logits, const Vocabulary& vocabulary)
      : vocabulary_(vocabulary),
        penalty_tokens_(req.penalty_tokens),
        adjust_(adjusting_chain(req, n_logits)),
        draw_(drawing_chain(req)) {
    if (req.grammar != nullptr) grammar_.emplace(parse_grammar(req.grammar));
  }

  int32_t sample(std::span<const float> logits) {
    const std::lock_guard lock(mutex_);
    if (grammar_) grammar_->start_token();
    // Most tokens that a model likes follow the grammar: only when the drawn one does not are all
    // others looked at.
    for (const bool mask : {false, true}) {
      fill(logits);
      if (mask) drop_what_breaks_the_grammar();
      const int32_t token = draw(mask);
      GrammarAutomaton::Place place;
      if (grammar_ && !may_follow(token, place)) continue;
      if (grammar_) grammar_->move_to(place);
      llama_sampler_accept(adjust_.get(), token);
      return token;
    }
    throw mri::Error(MRI_E_INTERNAL, "drew a token that the grammar forbids");
  }

  void accept(std::span<const int32_t> tokens) {
    const std::lock_guard lock(mutex_);
    const size_t n = std::min<size_t>(tokens.size(), penalty_tokens_);
    for (const int32_t token : tokens.last(n)) llama_sampler_accept(adjust_.get(), token);
  }

 private:
  // One for each thread, whatever the number of samplers.
  static std::vector<llama_token_data>& candidates() {
    thread_local std::vector<llama_token_data> list;
    return list;
  }

  void fill(std::span<const float> logits) {
    std::vector<llama_token_data>& list = candidates();
    list.resize(logits.size());
    float largest = -INFINITY;
    for (size_t i = 0; i < logits.size(); ++i) {
      const float logit = std::isnan(logits[i]) ? -INFINITY : logits[i];
      largest = std::max(largest, logit);
      list[i] = {static_cast<int32_t>(i), logit, 0};
    }
    if (!std::isfinite(largest)) throw mri::Error(MRI_E_ARG, "found no finite logit");
    llama_token_data_array array{list.data(), list.size(), -1, false};
    llama_sampler_apply(adjust_.get(), &array);
  }

  int32_t draw(bool is_masked) {
    std::vector<llama_token_data>& list = candidates();
    const auto best = std::max_element(
        list.begin(), list.end(),
        [](const llama_token_data& a, const llama_token_data& b) { return a.logit < b.logit; });
    if (best == list.end() || best->logit == -INFINITY) {
      throw is_masked ? mri::Error(MRI_E_STATE, "the grammar allows nothing more")
                      : mri::Error(MRI_E_ARG, "the biases forbid every token");
    }
    const int32_t likeliest = best->id;
    llama_token_data_array array{list.data(), list.size(), -1, false};
    llama_sampler_apply(draw_.get(), &array);
    if (array.selected < 0 || static_cast<size_t>(array.selected) >= array.size) return likeliest;
    const llama_token_data& drawn = array.data[array.selected];
    return drawn.logit > -INFINITY ? drawn.id : likeliest;  // a draw of exactly 0 takes the first
  }

  bool may_follow(int32_t token, GrammarAutomaton::Place& place) {
    place = grammar_->place();
    const auto i = static_cast<size_t>(token);
    if (i >= vocabulary_.is_end.size()) return false;
    if (vocabulary_.is_end[i]) return grammar_->is_complete();
    const std::string_view bytes = vocabulary_.bytes(i);
    return !bytes.empty() && grammar_->follow(bytes, place);
  }

  void drop_what_breaks_the_grammar() {
    GrammarAutomaton::Place place;
    std::erase_if(candidates(), [&](const llama_token_data& candidate) {
      return !may_follow(candidate.id, place);
    });
  }

  const Vocabulary& vocabulary_;
  const uint32_t penalty_tokens_;
  std::mutex mutex_;
  Chain adjust_, draw_;
  std::optional<GrammarAutomaton> grammar_;
};

Samplers::Samplers(const llama_vocab* vocabulary, uint32_t n_logits) : n_logits_(n_logits) {
  const int32_t n_tokens = llama_vocab_n_tokens(vocabulary);
  for (int32_t token = 0; token < n_tokens; ++token) {
    std::string bytes(64, '\0');
    int32_t n = llama_token_to_piece(vocabulary, token, bytes.data(), 64, 0, false);
    if (n < 0) {
      bytes.resize(static_cast<size_t>(-n));
      n = llama_token_to_piece(vocabulary, token, bytes.data(), -n, 0, false);
    }
    vocabulary_.text.append(bytes, 0, static_cast<size_t>(std::max(n, 0)));
    vocabulary_.starts.push_back(static_cast<uint32_t>(vocabulary_.text.size()));
    vocabulary_.is_end.push_back(llama_vocab_is_eog(vocabulary, token));
  }
}

Samplers::~Samplers() = default;

uint64_t Samplers::create(const mri_sampler_req& req) {
  check(req, n_logits_);
  std::shared_ptr<Sampler> sampler;
  try {
    sampler = std::make_shared<Sampler>(req, n_logits_, vocabulary_);
  } catch (const GrammarError& e) {
    throw mri::Error(MRI_E_ARG, e.what());
  }
  const std::lock_guard lock(mutex_);
  samplers_.emplace(next_, std::move(sampler));
  return next_++;
}

std::shared_ptr<Sampler> Samplers::find(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto at = samplers_.find(number);
  if (at == samplers_.end())
    throw mri::Error(MRI_E_NOT_FOUND, "no sampler " + std::to_string(number));
  return at->second;
}

int32_t Samplers::sample(uint64_t sampler, const float* logits) {
  try {
    return find(sampler)->sample({logits, n_logits_});
  } catch (const GrammarError& e) {
    throw mri::Error(MRI_E_ARG, e.what());
  }
}

void Samplers::accept(uint64_t sampler, std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    if (token < 0 || static_cast<uint32_t>(token) >= n_logits_)
      throw mri::Error(MRI_E_ARG, "no token " + std::to_string(token) + " in the vocabulary");
  }
  find(sampler)->accept(tokens);
}

void Samplers::release(uint64_t sampler) {
  std::shared_ptr<Sampler> gone;  // freed without the lock
  const std::lock_guard lock(mutex_);
  const auto at = samplers_.find(sampler);
  if (at == samplers_.end()) return;
  gone = std::move(at->second);
  samplers_.erase(at);
}

}  // namespace varve::sampling
