#include "core/engine/generation.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace varve {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

float plain(float logit) { return std::isnan(logit) ? kNever : logit; }

// The `n` likeliest tokens, likeliest first, by a heap whose top is the least likely of them.
std::vector<int32_t> likeliest(std::span<const float> logits, size_t n) {
  const auto is_likelier = [&](int32_t a, int32_t b) {
    const float x = plain(logits[static_cast<size_t>(a)]),
                y = plain(logits[static_cast<size_t>(b)]);
    return x != y ? x > y : a < b;
  };
  std::vector<int32_t> best;
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto token = static_cast<int32_t>(i);
    if (best.size() == n) {
      if (n == 0 || !is_likelier(token, best.front())) continue;
      std::pop_heap(best.begin(), best.end(), is_likelier);
      best.pop_back();
    }
    best.push_back(token);
    std::push_heap(best.begin(), best.end(), is_likelier);
  }
  std::sort_heap(best.begin(), best.end(), is_likelier);
  return best;
}

}  // namespace

TokenLogprob token_logprob(std::span<const float> logits, int32_t token, uint32_t n_top) {
  float largest = kNever;
  for (const float logit : logits) largest = std::max(largest, plain(logit));
  double sum = 0;
  for (const float logit : logits) sum += logit > kNever ? std::exp(logit - largest) : 0.0f;
  const float normaliser = largest + static_cast<float>(std::log(sum));
  const auto logprob_of = [&](int32_t t) {
    const float logit = plain(logits[static_cast<size_t>(t)]);
    return logit > kNever ? logit - normaliser : kNever;
  };
  TokenLogprob out;
  out.token = token;
  out.logprob = logprob_of(token);
  for (const int32_t t : likeliest(logits, n_top)) out.top.emplace_back(t, logprob_of(t));
  return out;
}

StopFilter::StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, "");
}

StopFilter::Out StopFilter::add(std::string_view bytes, bool may_stop) {
  held_ += bytes;
  Out out;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = may_stop ? held_.find(stop) : std::string::npos;
    if (at >= first) continue;
    first = at;
    out.stop = stop;
  }
  if (out.stop.has_value()) {
    out.text = held_.substr(0, first);
    held_.clear();
    return out;
  }
  size_t n_held = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > n_held; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) n_held = n;
    }
  }
  const size_t n_told = complete_utf8(std::string_view(held_).substr(0, held_.size() - n_held));
  out.text = held_.substr(0, n_told);
  held_.erase(0, n_told);
  return out;
}

std::string StopFilter::rest() { return std::exchange(held_, {}); }

Generation::Generation(GenerationLimits limits, std::unique_ptr<Sampler> sampler, const Text* text,
                       const std::vector<int32_t>* end_tokens)
    : limits_(std::move(limits)),
      sampler_(std::move(sampler)),
      text_(text),
      end_tokens_(end_tokens),
      filter_(limits_.stop) {}

bool Generation::is_end(int32_t token) const {
  return std::find(end_tokens_->begin(), end_tokens_->end(), token) != end_tokens_->end();
}

Generation::Next Generation::end_with(FinishReason reason, int32_t token) {
  Next next;
  next.end = reason;
  next.piece = rest();
  if (next.piece.has_value()) next.piece->token = token;
  return next;
}

std::optional<Piece> Generation::rest() {
  std::string text = filter_.rest();
  if (text.empty()) return std::nullopt;
  return Piece{0, std::move(text), {}};
}

absl::StatusOr<Generation::Next> Generation::next(std::span<float> logits) {
  const bool is_short = n_tokens_ < limits_.min_tokens;
  const bool wants_logprobs = limits_.n_logprobs >= 0;
  std::vector<std::pair<size_t, float>> ruled_out;
  if (is_short && !limits_.ignore_end) {
    for (const int32_t token : *end_tokens_) {
      const auto i = static_cast<size_t>(token);
      ruled_out.emplace_back(i, std::exchange(logits[i], kNever));
    }
  }
  const absl::StatusOr<int32_t> token = sampler_->sample(logits);
  if (absl::IsOutOfRange(token.status())) return end_with(FinishReason::kStop, 0);
  if (!token.ok()) return token.status();
  if (*token < 0 || static_cast<size_t>(*token) >= logits.size())
    return absl::InternalError("the sampler drew a token that the vocabulary does not have");
  if (!limits_.ignore_end && is_end(*token)) return end_with(FinishReason::kStop, *token);

  const absl::StatusOr<std::string> bytes = text_->detokenize({&*token, 1});
  if (!bytes.ok()) return bytes.status();
  Next next;
  Piece piece{*token, {}, {}};
  if (wants_logprobs) {
    // Of the model's own distribution: before end tokens were ruled out.
    for (const auto& [i, logit] : ruled_out) logits[i] = logit;
    piece.logprobs.push_back(
        token_logprob(logits, *token, static_cast<uint32_t>(limits_.n_logprobs)));
  }
  ++n_tokens_;
  StopFilter::Out out = filter_.add(*bytes, n_tokens_ >= limits_.min_tokens);
  piece.text = std::move(out.text);
  if (out.stop.has_value()) {
    next.end = FinishReason::kStop;
    next.stop = *std::move(out.stop);
  } else if (n_tokens_ >= limits_.max_tokens) {
    next.end = FinishReason::kLength;
    piece.text += filter_.rest();
  } else {
    next.token = *token;
  }
  next.piece = std::move(piece);
  return next;
}

}  // namespace varve
