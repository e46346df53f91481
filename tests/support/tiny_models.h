#pragma once

#include <ggml.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "adapters/light/model/model_config.h"

// Small models with random weights, written to disk as the real ones are: for tests of loaders and
// of the engine.
namespace varve::test {

struct TinyTensor {
  uint64_t rows = 1, cols = 0;
  std::vector<float> values;  // [rows][cols]
};

// The shape, and every weight in f32 under its GGUF name with the rotary pairs (i, i + rotary_dim /
// 2), which is the order of HuggingFace files and of the engine.
struct TinyModel {
  light::ModelConfig config;
  std::map<std::string, TinyTensor> tensors;
};

struct TinyOptions {
  uint32_t n_layers = 2, n_embd = 256, n_ff = 512, n_heads = 8, n_kv_heads = 2, head_dim = 32;
  uint32_t trained_tokens = 512;
  bool tied = false;
  bool bf16_values = false;  // every weight is representable in bf16
  bool llama3_rope = false;  // frequency divisors (GGUF only)
  uint64_t seed = 1;
};

// Widths that are multiples of 256 suit every ggml type. The vocabulary has 264 tokens: all bytes,
// three special ones and a few merges.
TinyModel tiny_model(light::Architecture family, const TinyOptions& options = {});

// Writes a GGUF file: vectors in f32, the value matrices in `value_type`, other matrices in `type`;
// llama and mistral with neighbouring rotary pairs, as converters do. The
// types IQ1, IQ2 and IQ3 get arbitrary weights, since quantising to them is slow. Throws
// std::runtime_error.
void write_gguf(const TinyModel& model, const std::string& path, ggml_type type,
                ggml_type value_type);
void write_gguf(const TinyModel& model, const std::string& path, ggml_type type = GGML_TYPE_F32);

// Writes config.json and the weights in `n_files` safetensors files (with an index when there are
// several) into an existing folder. type: F32, F16 or BF16.
void write_hf_folder(const TinyModel& model, const std::string& folder,
                     ggml_type type = GGML_TYPE_F32, unsigned n_files = 1);

// A new empty folder, removed with all it holds at the end.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string path(const std::string& name = "") const;

 private:
  std::string root_;
};

}  // namespace varve::test
