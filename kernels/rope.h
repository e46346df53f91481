// Rotary position embedding. Pairs are (i, i + rotary_dim/2), i < rotary_dim/2; channels from
// rotary_dim on are left alone. Tables hold cos and sin of position * frequency, so that they can
// be composed: a position is turned in two steps (block, then offset) by two tables. All functions
// are thread-safe.
#pragma once

#include <cstddef>

namespace varve::kernels {

struct RopeOptions {
  double base = 10000.0;
  size_t rotary_dim = 0;    // even
  double freq_scale = 1.0;  // linear scaling: positions count this much; 1 / factor
  const float* freq_factors =
      nullptr;  // [rotary_dim/2], frequencies are divided by them; NULL: none
  // YaRN (arXiv 2309.00071): pairs that turn often keep their frequency, slow ones are scaled by
  // freq_scale.
  double yarn_ext_factor = 0.0;  // 0: off; 1: on
  double yarn_attn_factor = 1.0;
  double yarn_beta_fast = 32.0, yarn_beta_slow = 1.0;  // turns within the trained length
  size_t yarn_trained_length = 0;  // tokens; needed when yarn_ext_factor is not 0
};

// Radians per token of each pair. Returns the factor by which YaRN lengthens the query and the key
// each (1 without YaRN); tables do not contain it: multiply attention's scale by its square.
double rope_frequencies(const RopeOptions& options, double* frequencies /* [rotary_dim/2] */);

// The freq_factors of llama 3.1's "llama3" scaling: wavelengths above trained_length /
// low_freq_factor are stretched by `factor`, those below trained_length / high_freq_factor are
// kept, between them the two are mixed.
void llama3_freq_factors(double base, size_t rotary_dim, double factor, double low_freq_factor,
                         double high_freq_factor, double trained_length,
                         float* freq_factors /* [rotary_dim/2] */);

// Row r holds cos and sin of (r * step) tokens. Angles are computed in double.
void rope_table(const double* frequencies, size_t rotary_dim, size_t step, size_t rows,
                float* cos /* [rows][rotary_dim/2] */, float* sin);

// Turns the heads of one token by one row of a table, in place: a' = a cos - b sin, b' = b cos + a
// sin.
namespace ref {
void rope_rows(float* x /* [heads][head_dim] */, size_t heads, size_t head_dim, size_t rotary_dim,
               const float* cos /* [rotary_dim/2] */, const float* sin);
}
namespace cpu {
void rope_rows(float* x, size_t heads, size_t head_dim, size_t rotary_dim, const float* cos,
               const float* sin);
}
}  // namespace varve::kernels
