// resident.h: a model's matrices unpacked for good, as bf16 panels: twice to four times the memory
// of packed ones, and a step of more than a few rows need not unpack them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "adapters/light/model/load_model.h"
#include "kernels/weights.h"
#include "mri/sdk/host.hpp"

namespace varve::light {

struct ResidentWeights {
  struct Layer {
    kernels::PackedWeights wqkv, wo, w_gate, w_up, w_down;  // as in Model::Layer
  };
  std::vector<Layer> layers;
  kernels::PackedWeights output;
  std::shared_ptr<const Model> model;  // of which these are
};

// The same object for all stacks of the process that share `model`. Stacks that open at once wait
// for each other. [any thread]
std::shared_ptr<const ResidentWeights> share_resident(const std::shared_ptr<const Model>& model,
                                                      const mri::Host& host);

}  // namespace varve::light
