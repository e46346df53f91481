#include "adapters/light/forward/rope_tables.h"

#include "kernels/rope.h"

namespace varve::light {
namespace {

std::vector<double> frequencies_of(const ModelConfig& config) {
  const RopeScalingConfig& scaling = config.rope_scaling;
  kernels::RopeOptions options;
  options.base = config.rope_base;
  options.rotary_dim = config.rotary_dim;
  switch (scaling.kind) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      options.freq_scale = 1.0 / scaling.factor;
      break;
    case RopeScaling::kLlama3:
      options.freq_factors = scaling.freq_factors.data();
      break;
    case RopeScaling::kYarn:
      options.freq_scale = 1.0 / scaling.factor;
      options.yarn_ext_factor = 1.0;
      options.yarn_beta_fast = scaling.beta_fast;
      options.yarn_beta_slow = scaling.beta_slow;
      options.yarn_trained_length = scaling.original_tokens;
      break;
  }
  std::vector<double> frequencies(config.rotary_dim / 2);
  kernels::rope_frequencies(options, frequencies.data());
  return frequencies;
}

}  // namespace

RopeTables::RopeTables(const ModelConfig& config, uint32_t max_tokens) {
  const std::vector<double> frequencies = frequencies_of(config);
  rope_.n_fine = kTileQueriesMax + MRI_BLOCK_TOKENS;
  rope_.n_coarse = (max_tokens + MRI_SEGMENT_TOKENS - 1) / MRI_BLOCK_TOKENS + 1;
  rope_.head_dim = config.head_dim;
  rope_.rotary_dim = config.rotary_dim;
  const auto fill = [&](size_t step, size_t rows, std::vector<float>& cos,
                        std::vector<float>& sin) {
    cos.resize(rows * frequencies.size());
    sin.resize(rows * frequencies.size());
    kernels::rope_table(frequencies.data(), config.rotary_dim, step, rows, cos.data(), sin.data());
  };
  fill(1, rope_.n_fine, tables_[0], tables_[1]);
  fill(MRI_BLOCK_TOKENS, rope_.n_coarse, tables_[2], tables_[3]);
  rope_.fine_cos = tables_[0].data();
  rope_.fine_sin = tables_[1].data();
  rope_.coarse_cos = tables_[2].data();
  rope_.coarse_sin = tables_[3].data();
  if (config.rope_scaling.kind == RopeScaling::kYarn) magnitude_ = config.rope_scaling.magnitude;
}

}  // namespace varve::light
