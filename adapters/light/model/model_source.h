#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "adapters/light/model/file.h"
#include "adapters/light/model/gguf_check.h"
#include "adapters/light/model/model_config.h"

namespace varve::light {

// Where one weight lies. Vectors have one row.
struct StoredTensor {
  uint32_t file = 0;  // index into ModelSource::files
  uint32_t type = 0;  // ggml_type
  uint64_t rows = 0;
  uint64_t cols = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// A model whose files are checked and open: its shape, and every weight it needs under the name
// GGUF gives it
// ("blk.0.attn_q.weight"), with the shape the configuration demands.
struct ModelSource {
  std::string path;
  ModelConfig config;
  std::vector<File> files;
  std::map<std::string, StoredTensor, std::less<>> tensors;
};

// Opens a GGUF file, or a HuggingFace folder (config.json and *.safetensors). Throws ModelError.
ModelSource open_model(const std::string& path);

// The two halves of it, by format.
ModelSource open_gguf(const std::string& path);
ModelSource open_hf_folder(const std::string& path);

// The model's shape from a checked GGUF header; `name` starts every message. The tensors decide
// `tied_embeddings`, `qkv_bias` and `vocab`.
ModelConfig gguf_config(const GgufFile& file, const std::string& name);

// Refuses a file whose tokenizer libllama could not read; all that a file used only for its
// vocabulary must have.
void check_vocabulary(const GgufFile& file, const std::string& name);

// Refuses a configuration whose numbers are out of range or do not fit together.
void check_config(const ModelConfig& config, const std::string& name);

// Refuses a source that lacks a tensor the configuration needs or has it in another shape or in a
// type that holds no weights.
void check_tensors(const ModelSource& source);

}  // namespace varve::light
