#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace varve::light {

// The families this engine runs: RMSNorm, RoPE, grouped-query attention, SwiGLU.
enum class Architecture { kLlama, kQwen2, kQwen3, kMistral };
std::string_view name_of(Architecture architecture);

// How rotary frequencies stretch past the trained length.
//   kLinear  every frequency divided by `factor`
//   kYarn    ramp between scaled and unscaled frequencies (Peng et al. 2023, arXiv 2309.00071,
//   section 3.2):
//            `factor`, `original_tokens`, `beta_fast`, `beta_slow`; rotated q and k are multiplied
//            by `magnitude`
//   kLlama3  frequency i is divided by freq_factors[i]
enum class RopeScaling { kNone, kLinear, kYarn, kLlama3 };

struct RopeScalingConfig {
  RopeScaling kind = RopeScaling::kNone;
  float factor = 1.0f;
  uint32_t original_tokens = 0;
  float beta_fast = 32.0f;
  float beta_slow = 1.0f;
  float magnitude = 1.0f;
  std::vector<float> freq_factors;  // rotary_dim / 2 divisors, only for kLlama3
};

// The shape of one model, the same whatever file it came from. Plain data; every field is in range
// once a loader has returned it: n_heads % n_kv_heads == 0, rotary_dim even and <= head_dim, all
// counts > 0.
struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  uint32_t n_layers = 0;
  uint32_t n_embd = 0;      // width of the residual stream
  uint32_t n_ff = 0;        // width of the feed-forward layer
  uint32_t n_heads = 0;     // query heads
  uint32_t n_kv_heads = 0;  // key and value heads
  uint32_t head_dim = 0;    // n_heads * head_dim need not equal n_embd
  uint32_t rotary_dim =
      0;  // leading elements of a head that are rotated, pairs (i, i + rotary_dim / 2)
  float rope_base = 10000.0f;
  RopeScalingConfig rope_scaling;
  float norm_eps = 1e-5f;
  uint32_t vocab = 0;
  uint32_t trained_tokens = 0;   // context length the model was trained for
  bool tied_embeddings = false;  // the output matrix is the token embedding
  bool qkv_bias = false;
  bool qk_norm = false;         // RMSNorm over each query and key head before the rotation
  uint32_t sliding_window = 0;  // tokens; 0 means every layer sees everything

  // What the file stores, not what the engine sees: true when rotary pairs are neighbours (2i, 2i +
  // 1), as in GGUF files of llama and mistral. load_model() then reorders the rows of Wq and Wk
  // (and their biases) inside each head, so that the engine only ever meets pairs (i, i +
  // rotary_dim / 2).
  bool rope_pairs_neighbour = false;

  uint32_t q_rows() const { return n_heads * head_dim; }
  uint32_t kv_rows() const { return n_kv_heads * head_dim; }
};

}  // namespace varve::light
