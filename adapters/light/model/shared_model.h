// shared_model.h: one copy of a model's weights for all stacks of the process.
#pragma once

#include <memory>
#include <string>

#include "adapters/light/model/load_model.h"

namespace varve::light {

// As load_model(); while somebody holds a model that was loaded from the same files (path, device,
// inode, size and time of change of each), the same object. Stacks that open at once wait for each
// other. [any thread]
std::shared_ptr<const Model> share_model(const std::string& path, const LoadOptions& options = {});

}  // namespace varve::light
