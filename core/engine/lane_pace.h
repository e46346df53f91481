// How much of a prompt a step may read beside running answers, from how long steps took.
#pragma once

#include <array>
#include <cstdint>

namespace varve {

struct PaceLimits {
  double stall_max = 2.5;
  uint32_t step_ms_max = 100;
};

// A step's time is taken as decode_ms(answers in it) + cost of a prompt token x prompt tokens; both
// are learnt (moving averages). One thread at a time.
class LanePace {
 public:
  explicit LanePace(PaceLimits limits) : limits_(limits) {}
  void set_limits(PaceLimits limits) { limits_ = limits; }

  // Prompt tokens that the next step may read beside `n_decode` answers: as many as keep the step
  // within stall_max x the same step without them (only when `bounds_stall`) and within
  // step_ms_max; kPieceTokensMin at least, so that prompts never starve. 0: the next step shall be
  // measured without prompts.
  uint64_t grant(uint32_t n_decode, bool bounds_stall) const;

  // A step of `n_decode` answers and `n_prompt` prompt tokens took this long.
  void measured(uint32_t n_decode, uint64_t n_prompt, double ms);

  double decode_ms(uint32_t n_decode) const;  // 0: not known yet

  static constexpr uint64_t kPieceTokensMin = 8;

 private:
  static constexpr uint32_t kRowsMax = 64;     // more answers count as this many
  static constexpr uint32_t kProbeSteps = 64;  // so many steps with prompts, then one without

  PaceLimits limits_;
  std::array<double, kRowsMax + 1> decode_ms_{};  // by answers; 0: unknown
  double prompt_token_ms_ = 0;
  uint64_t largest_piece_ = 0;  // of late: a grant is at most twice this
  uint32_t mixed_steps_ = 0;    // since answers ran without prompts
};

}  // namespace varve
