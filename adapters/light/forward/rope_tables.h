// rope_tables.h: the rotary angles of a model as tables (mri/kv_view.h, mri_rope).
#pragma once

#include <cstdint>
#include <vector>

#include "adapters/light/model/model_config.h"
#include "mri/kv_view.h"

namespace varve::light {

// The longest tile that attention plugins may ask for, plus its offset in a block.
inline constexpr uint32_t kTileQueriesMax = 256;

// Owns the tables that rope() points into. Immutable.
class RopeTables {
 public:
  // max_tokens: the longest distance between a query and a key, rounded up to whole segments.
  RopeTables(const ModelConfig& config, uint32_t max_tokens);
  RopeTables(const RopeTables&) = delete;
  RopeTables& operator=(const RopeTables&) = delete;

  const mri_rope& rope() const { return rope_; }
  // What rotated queries and keys are both multiplied by (YaRN); belongs into the attention scale,
  // squared.
  float magnitude() const { return magnitude_; }

 private:
  std::vector<float> tables_[4];
  mri_rope rope_{};
  float magnitude_ = 1.0f;
};

}  // namespace varve::light
