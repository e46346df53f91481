#include "core/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/engine/mri_status.h"
#include "core/engine/text.h"

namespace varve {
namespace {

// Temperature and top_p, without the runtime's help.
class OwnSampler final : public Sampler {
 public:
  explicit OwnSampler(const SamplerOptions& options)
      : temperature_(options.temperature), top_p_(options.top_p), random_(options.seed) {}

  absl::StatusOr<int32_t> sample(std::span<const float> logits) override {
    int32_t best = -1;
    float largest = -INFINITY;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] > largest) {
        largest = logits[i];
        best = static_cast<int32_t>(i);
      }
    }
    if (best < 0 || !std::isfinite(largest)) {
      return absl::InternalError("the runtime gave no finite logit; expected one for each token");
    }
    return temperature_ <= 0 ? best : draw(logits, largest);
  }

  absl::Status accept(std::span<const int32_t>) override { return absl::OkStatus(); }

 private:
  using Weight = std::pair<float, int32_t>;

  int32_t draw(std::span<const float> logits, float largest) {
    weights_.clear();
    // The nucleus is of the model's own distribution: temperature comes after it.
    const auto scale = static_cast<float>(top_p_ < 1 ? 1 : 1 / temperature_);
    for (size_t i = 0; i < logits.size(); ++i) {
      const float weight = std::exp((logits[i] - largest) * scale);
      if (weight > 0) weights_.emplace_back(weight, static_cast<int32_t>(i));
    }
    if (top_p_ < 1) {
      keep_likeliest();
      const auto exponent = static_cast<float>(1 / temperature_);
      for (Weight& weight : weights_) weight.first = std::pow(weight.first, exponent);
    }
    double total = 0;
    for (const Weight& weight : weights_) total += weight.first;
    // 53 random bits as a number in [0, 1): std::uniform_real_distribution differs between
    // libraries.
    double left = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
    for (const auto& [weight, token] : weights_) {
      left -= weight;
      if (left < 0) return token;
    }
    return weights_.back().second;
  }

  // Cuts weights_ to the fewest that reach top_p_.
  void keep_likeliest() {
    double total = 0;
    for (const Weight& weight : weights_) total += weight.first;
    // Tokens up to this weight reach 1 - top_p_ together at most: none of the others needs them.
    // The likeliest has weight 1.
    const double unneeded = (1 - top_p_) * total / static_cast<double>(weights_.size());
    std::erase_if(weights_, [&](const Weight& w) { return w.first <= unneeded && w.first < 1; });
    std::sort(weights_.begin(), weights_.end(), [](const Weight& a, const Weight& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    double kept = 0;
    size_t n = 0;
    while (n < weights_.size() && (n == 0 || kept < top_p_ * total)) kept += weights_[n++].first;
    weights_.resize(n);
  }

  const double temperature_, top_p_;
  std::mt19937_64 random_;
  std::vector<Weight> weights_;  // scratch
};

// Everything, by the runtime.
class RuntimeSampler final : public Sampler {
 public:
  RuntimeSampler(const mri::Peer<mri_sampling_v1>& runtime, uint64_t n_vocabulary, uint64_t number)
      : runtime_(runtime), n_vocabulary_(n_vocabulary), number_(number) {}
  ~RuntimeSampler() override { runtime_.table->release(runtime_.self, number_); }
  RuntimeSampler(const RuntimeSampler&) = delete;
  RuntimeSampler& operator=(const RuntimeSampler&) = delete;

  absl::StatusOr<int32_t> sample(std::span<const float> logits) override {
    if (logits.size() != n_vocabulary_) {
      return absl::InternalError(absl::StrCat("found ", logits.size(), " logits; expected ",
                                              n_vocabulary_, ", one for each token"));
    }
    int32_t token = -1;
    mri_error error = empty_error();
    const mri_status status =
        runtime_.table->sample(runtime_.self, number_, logits.data(), &token, &error);
    if (status == MRI_E_STATE) return absl::OutOfRangeError("the grammar allows nothing more");
    if (status != MRI_OK) return to_status("sample", status, error);
    if (token < 0 || static_cast<uint64_t>(token) >= n_vocabulary_) {
      return absl::InternalError(absl::StrCat("sample: the runtime drew token ", token,
                                              "; expected one below ", n_vocabulary_));
    }
    return token;
  }

  absl::Status accept(std::span<const int32_t> tokens) override {
    mri_error error = empty_error();
    const mri_status status =
        runtime_.table->accept(runtime_.self, number_, tokens.data(), tokens.size(), &error);
    return status == MRI_OK ? absl::OkStatus() : to_status("accept", status, error);
  }

 private:
  const mri::Peer<mri_sampling_v1> runtime_;
  const uint64_t n_vocabulary_;
  const uint64_t number_;
};

bool needs_runtime(const SamplerOptions& options) {
  const bool cuts = options.temperature > 0 && (options.min_p > 0 || options.top_k > 0);
  return cuts || options.repetition_penalty != 1 || options.presence_penalty != 0 ||
         options.frequency_penalty != 0 || !options.logit_bias.empty() || !options.grammar.empty();
}

absl::Status check(const SamplerOptions& options, uint64_t n_vocabulary) {
  const auto bad = [](const char* name, double found, const char* expected) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": found ", found, "; expected ", expected));
  };
  const auto within = [](double x, double low, double high) { return x >= low && x <= high; };
  if (!within(options.temperature, 0, 100))
    return bad("temperature", options.temperature, "0 to 100");
  if (!within(options.top_p, 0, 1)) return bad("top_p", options.top_p, "0 to 1");
  if (!within(options.min_p, 0, 1)) return bad("min_p", options.min_p, "0 to 1");
  if (!within(options.repetition_penalty, 0.01, 100))
    return bad("repetition_penalty", options.repetition_penalty, "0.01 to 100");
  if (!within(options.presence_penalty, -100, 100))
    return bad("presence_penalty", options.presence_penalty, "-100 to 100");
  if (!within(options.frequency_penalty, -100, 100))
    return bad("frequency_penalty", options.frequency_penalty, "-100 to 100");
  for (const auto& [token, bias] : options.logit_bias) {
    if (token < 0 || static_cast<uint64_t>(token) >= n_vocabulary || std::isnan(bias) ||
        bias == INFINITY) {
      return absl::InvalidArgumentError(
          absl::StrCat("logit_bias: found token ", token, " with bias ", bias,
                       "; expected a token below ", n_vocabulary, " and a finite bias or -inf"));
    }
  }
  if (options.grammar.find('\0') != std::string::npos)
    return absl::InvalidArgumentError("grammar: found a NUL byte; expected GBNF text");
  return absl::OkStatus();
}

mri_sampler_req request_of(const SamplerOptions& options,
                           const std::vector<mri_logit_bias>& biases) {
  mri_sampler_req req{};
  req.hdr.struct_size = sizeof(req);
  req.seed = options.seed;
  req.biases = biases.data();
  req.n_biases = static_cast<uint32_t>(biases.size());
  req.grammar = options.grammar.empty() ? nullptr : options.grammar.c_str();
  req.top_k = options.top_k;
  req.penalty_tokens = options.penalty_tokens;
  req.temperature = static_cast<float>(options.temperature);
  req.top_p = static_cast<float>(options.top_p);
  req.min_p = static_cast<float>(options.min_p);
  req.repetition_penalty = static_cast<float>(options.repetition_penalty);
  req.presence_penalty = static_cast<float>(options.presence_penalty);
  req.frequency_penalty = static_cast<float>(options.frequency_penalty);
  return req;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Sampler>> Sampler::make(const SamplerOptions& options,
                                                       const Stack& stack) {
  if (!needs_runtime(options)) return make(options, {}, std::numeric_limits<int32_t>::max());
  const mri::Peer<mri_text_v1> text = stack.text();
  if (!text) return make(options, {}, 0);
  const absl::StatusOr<mri_model_info> info = Text(text.table, text.self).model_info();
  if (!info.ok()) return info.status();
  return make(options, stack.sampling(), info->vocab_size);
}

absl::StatusOr<std::unique_ptr<Sampler>> Sampler::make(const SamplerOptions& options,
                                                       const mri::Peer<mri_sampling_v1>& sampling,
                                                       uint64_t n_vocabulary) {
  if (const absl::Status status = check(options, n_vocabulary); !status.ok()) return status;
  if (!needs_runtime(options)) return std::make_unique<OwnSampler>(options);
  if (!sampling) {
    return absl::UnimplementedError(
        "the runtime offers no " MRI_SAMPLING
        "; without it only temperature, top_p and seed can be set: remove the others or use a "
        "runtime that has it (light)");
  }
  std::vector<mri_logit_bias> biases;
  for (const auto& [token, bias] : options.logit_bias) biases.push_back({token, bias});
  const mri_sampler_req req = request_of(options, biases);
  uint64_t number = 0;
  mri_error error = empty_error();
  const mri_status status = sampling.table->create(sampling.self, &req, &number, &error);
  if (status != MRI_OK) return to_status("create sampler", status, error);
  return std::make_unique<RuntimeSampler>(sampling, n_vocabulary, number);
}

}  // namespace varve
