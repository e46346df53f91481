#include "kernels/rope.h"

#include <algorithm>
#include <cmath>

namespace varve::kernels {
namespace {

constexpr double kPi = 3.14159265358979323846;

double plain_frequency(double base, size_t rotary_dim, size_t pair) {
  return std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary_dim));
}

// The pair that makes `turns` turns within the trained length.
double pair_of_turns(const RopeOptions& o, double turns) {
  const double length = static_cast<double>(o.yarn_trained_length);
  return static_cast<double>(o.rotary_dim) * std::log(length / (turns * 2.0 * kPi)) /
         (2.0 * std::log(o.base));
}

}  // namespace

double rope_frequencies(const RopeOptions& o, double* frequencies) {
  const bool yarn = o.yarn_ext_factor != 0.0;
  double low = 0.0, high = 0.0;
  if (yarn) {
    low = std::max(0.0, std::floor(pair_of_turns(o, o.yarn_beta_fast)));
    high = std::min(static_cast<double>(o.rotary_dim) - 1.0,
                    std::ceil(pair_of_turns(o, o.yarn_beta_slow)));
  }
  for (size_t i = 0; i < o.rotary_dim / 2; ++i) {
    const double factor = o.freq_factors ? static_cast<double>(o.freq_factors[i]) : 1.0;
    const double kept = plain_frequency(o.base, o.rotary_dim, i) / factor;
    const double scaled = kept * o.freq_scale;
    const double along = (static_cast<double>(i) - low) / std::max(0.001, high - low);
    const double keep = yarn ? (1.0 - std::clamp(along, 0.0, 1.0)) * o.yarn_ext_factor : 0.0;
    frequencies[i] = scaled * (1.0 - keep) + kept * keep;
  }
  return yarn ? o.yarn_attn_factor * (1.0 + 0.1 * std::log(1.0 / o.freq_scale))
              : o.yarn_attn_factor;
}

void llama3_freq_factors(double base, size_t rotary_dim, double factor, double low_freq_factor,
                         double high_freq_factor, double trained_length, float* freq_factors) {
  for (size_t i = 0; i < rotary_dim / 2; ++i) {
    const double turns = trained_length * plain_frequency(base, rotary_dim, i) / (2.0 * kPi);
    const double keep =
        std::clamp((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0.0, 1.0);
    freq_factors[i] = static_cast<float>(1.0 / ((1.0 - keep) / factor + keep));
  }
}

void rope_table(const double* frequencies, size_t rotary_dim, size_t step, size_t rows, float* cos,
                float* sin) {
  const size_t half = rotary_dim / 2;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(r * step) * frequencies[i];
      cos[r * half + i] = static_cast<float>(std::cos(angle));
      sin[r * half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace varve::kernels
