#include "core/engine/lane_pace.h"

#include <algorithm>

namespace varve {
namespace {

constexpr double kNewShare = 0.3;
constexpr uint64_t kFirstPieceTokens = 64;
// Kernels take rows in fours.
constexpr uint64_t kPieceUnitTokens = 4;
// A cost that was learnt on small pieces says little about large ones.
constexpr uint64_t kGrowth = 2;

void learn(double* average, double value) {
  *average = *average == 0 ? value : *average + kNewShare * (value - *average);
}

}  // namespace

double LanePace::decode_ms(uint32_t n_decode) const {
  const uint32_t wanted = std::min(n_decode, kRowsMax);
  for (uint32_t distance = 0; distance <= kRowsMax; ++distance) {
    if (wanted >= distance && decode_ms_[wanted - distance] > 0)
      return decode_ms_[wanted - distance];
    if (wanted + distance <= kRowsMax && decode_ms_[wanted + distance] > 0)
      return decode_ms_[wanted + distance];
  }
  return 0;
}

uint64_t LanePace::grant(uint32_t n_decode, bool bounds_stall) const {
  const double decode = n_decode > 0 ? decode_ms(n_decode) : 0;
  if (n_decode > 0 && bounds_stall && (decode == 0 || mixed_steps_ >= kProbeSteps)) return 0;
  double ms = limits_.step_ms_max - decode;
  if (n_decode > 0 && bounds_stall) ms = std::min(ms, (limits_.stall_max - 1) * decode);
  const uint64_t most = std::max(kFirstPieceTokens, kGrowth * largest_piece_);
  if (prompt_token_ms_ == 0) return kPieceTokensMin;
  const double tokens = std::max(0.0, ms / prompt_token_ms_);
  const uint64_t n = tokens < static_cast<double>(most) ? static_cast<uint64_t>(tokens) : most;
  return std::max(kPieceTokensMin, n / kPieceUnitTokens * kPieceUnitTokens);
}

void LanePace::measured(uint32_t n_decode, uint64_t n_prompt, double ms) {
  if (n_prompt == 0) {
    learn(&decode_ms_[std::min(n_decode, kRowsMax)], ms);
    mixed_steps_ = 0;
    return;
  }
  if (n_decode > 0) ++mixed_steps_;
  const double rest = ms - (n_decode > 0 ? decode_ms(n_decode) : 0);
  // A tiny piece is mostly fixed cost: it tells an upper bound only.
  learn(&prompt_token_ms_, std::max(1e-4, rest / static_cast<double>(n_prompt)));
  largest_piece_ = std::max(n_prompt, largest_piece_ - largest_piece_ / 8);
}

}  // namespace varve
