#pragma once

#include <string>

#include "adapters/light/model/model_config.h"

namespace varve::light {

// The model's shape from the text of a HuggingFace config.json; `name` starts every message.
// `vocab` comes from vocab_size. Throws ModelError.
ModelConfig hf_config(const std::string& text, const std::string& name);

}  // namespace varve::light
