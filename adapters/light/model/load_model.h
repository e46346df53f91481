#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "adapters/light/model/model_config.h"
#include "kernels/weights.h"

namespace varve::light {

// Rows of one or more weight matrices that share an input, one after the other. Matrices stored in
// the same packed format are one part; where a file mixes formats (Q4_K with a Q6_K value matrix)
// there is a part for each, in row order. A product with the whole is a product with every part,
// into consecutive columns.
using RowParts = std::vector<kernels::PackedWeights>;

// The weights and shape of one model, ready for the engine: packed once, read by any number of
// threads.
struct Model {
  struct Layer {
    RowParts
        wqkv;  // rows: q (n_heads * head_dim), k, v (n_kv_heads * head_dim each); columns n_embd
    kernels::PackedWeights wo;      // [n_embd][n_heads * head_dim]
    RowParts w_gate_up;             // rows: gate (n_ff), up (n_ff); columns n_embd
    kernels::PackedWeights w_down;  // [n_embd][n_ff]
    std::vector<float> attn_norm;   // n_embd
    std::vector<float> ffn_norm;    // n_embd
    std::vector<float> bias_qkv;    // as the rows of wqkv; empty without qkv_bias
    std::vector<float> q_norm;      // head_dim; empty without qk_norm
    std::vector<float> k_norm;
  };

  ModelConfig config;
  std::vector<Layer> layers;
  std::vector<float> output_norm;  // n_embd
  kernels::PackedWeights
      output;  // [vocab][n_embd], also the token embedding when config.tied_embeddings
  kernels::PackedWeights embedding;  // [vocab][n_embd]; no rows when tied

  // Writes the embedding of `token` (< config.vocab) into out [n_embd]. [any thread]
  void embedding_row(uint32_t token, float* out) const;

  // Bytes of all packed matrices.
  uint64_t weight_bytes() const;
};

struct LoadOptions {
  unsigned threads = 2;
  // Called as parts of the model become ready, `done` of `total` weight bytes of the file; one call
  // at a time, from any of the loading threads. False stops the loading with a ModelError.
  std::function<bool(uint64_t done, uint64_t total)> progress = nullptr;
};

// Checks and loads a GGUF file or a HuggingFace folder. Weights are read piece by piece and packed
// at once, so the peak memory is the packed size and a few MiB. Whatever the file's rotary pairing,
// rows of q and k are in half-split order (see ModelConfig::rope_pairs_neighbour). Throws
// ModelError; std::bad_alloc when the weights do not fit in memory.
Model load_model(const std::string& path, const LoadOptions& options = {});

}  // namespace varve::light
