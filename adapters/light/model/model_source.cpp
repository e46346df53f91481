#include "adapters/light/model/model_source.h"

#include <ggml.h>

#include <filesystem>
#include <string_view>

#include "adapters/light/model/model_error.h"

namespace varve::light {
namespace {

bool holds_weights(uint32_t type) {
  return type == GGML_TYPE_F32 ||
         ggml_get_type_traits(static_cast<ggml_type>(type))->to_float != nullptr;
}

void check_one(const ModelSource& source, const std::string& name, uint64_t rows, uint64_t cols) {
  const auto found = source.tensors.find(name);
  if (found == source.tensors.end()) refuse(source.path, ": tensor '", name, "' is missing");
  const StoredTensor& tensor = found->second;
  if (tensor.rows != rows || tensor.cols != cols) {
    refuse(source.path, ": tensor '", name, "' is ", tensor.rows, " x ", tensor.cols, "; expected ",
           rows, " x ", cols);
  }
  if (!holds_weights(tensor.type)) {
    refuse(source.path, ": tensor '", name, "' has type ",
           ggml_type_name(static_cast<ggml_type>(tensor.type)), ", which holds no weights");
  }
}

void check_layer(const ModelSource& source, uint32_t layer) {
  const ModelConfig& c = source.config;
  const auto check = [&](std::string_view role, uint64_t rows, uint64_t cols) {
    check_one(source, "blk." + std::to_string(layer) + "." + std::string(role), rows, cols);
  };
  check("attn_norm.weight", 1, c.n_embd);
  check("attn_q.weight", c.q_rows(), c.n_embd);
  check("attn_k.weight", c.kv_rows(), c.n_embd);
  check("attn_v.weight", c.kv_rows(), c.n_embd);
  check("attn_output.weight", c.n_embd, c.q_rows());
  check("ffn_norm.weight", 1, c.n_embd);
  check("ffn_gate.weight", c.n_ff, c.n_embd);
  check("ffn_up.weight", c.n_ff, c.n_embd);
  check("ffn_down.weight", c.n_embd, c.n_ff);
  if (c.qkv_bias) {
    check("attn_q.bias", 1, c.q_rows());
    check("attn_k.bias", 1, c.kv_rows());
    check("attn_v.bias", 1, c.kv_rows());
  }
  if (c.qk_norm) {
    check("attn_q_norm.weight", 1, c.head_dim);
    check("attn_k_norm.weight", 1, c.head_dim);
  }
}

// A tensor that would change the result but that the engine does not apply must not be dropped in
// silence.
void refuse_unused(const ModelSource& source) {
  for (const auto& [name, tensor] : source.tensors) {
    const bool known_bias = source.config.qkv_bias &&
                            (name.ends_with(".attn_q.bias") || name.ends_with(".attn_k.bias") ||
                             name.ends_with(".attn_v.bias"));
    const bool extra_norm = !source.config.qk_norm && name.ends_with("_norm.weight") &&
                            name.find(".attn_q_") != std::string::npos;
    if ((name.ends_with(".bias") && !known_bias) || extra_norm) {
      refuse(source.path, ": tensor '", name,
             "' is not part of this model family as the engine knows it");
    }
  }
}

}  // namespace

std::string_view name_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
      return "llama";
    case Architecture::kQwen2:
      return "qwen2";
    case Architecture::kQwen3:
      return "qwen3";
    case Architecture::kMistral:
      return "mistral";
  }
  return "unknown";
}

void check_config(const ModelConfig& c, const std::string& name) {
  const auto range = [&](const char* what, uint64_t value, uint64_t least, uint64_t most) {
    if (value < least || value > most)
      refuse(name, ": ", what, " is ", value, "; expected ", least, " to ", most);
  };
  range("the number of layers", c.n_layers, 1, 512);
  range("the embedding width", c.n_embd, 1, 1 << 17);
  range("the feed-forward width", c.n_ff, 1, 1 << 20);
  range("the number of heads", c.n_heads, 1, 1 << 12);
  range("the number of KV heads", c.n_kv_heads, 1, c.n_heads);
  range("the head size", c.head_dim, 2, 512);
  range("the rotary size", c.rotary_dim, 2, c.head_dim);
  range("the vocabulary", c.vocab, 1, 1 << 24);
  range("the trained length", c.trained_tokens, 1, INT32_MAX);
  if (c.n_heads % c.n_kv_heads != 0) {
    refuse(name, ": ", c.n_heads, " heads cannot be shared evenly by ", c.n_kv_heads, " KV heads");
  }
  if (c.head_dim % 2 != 0 || c.rotary_dim % 2 != 0) {
    refuse(name, ": head size ", c.head_dim, " and rotary size ", c.rotary_dim, " must be even");
  }
  if (!(c.norm_eps > 0.0f && c.norm_eps <= 0.1f))
    refuse(name, ": the norm epsilon is ", c.norm_eps, "; expected > 0");
  if (!(c.rope_base >= 1.0f && c.rope_base <= 1e12f))
    refuse(name, ": the RoPE base is ", c.rope_base, "; expected >= 1");
}

void check_tensors(const ModelSource& source) {
  const ModelConfig& c = source.config;
  check_one(source, "token_embd.weight", c.vocab, c.n_embd);
  check_one(source, "output_norm.weight", 1, c.n_embd);
  if (!c.tied_embeddings) check_one(source, "output.weight", c.vocab, c.n_embd);
  for (uint32_t layer = 0; layer < c.n_layers; ++layer) check_layer(source, layer);
  refuse_unused(source);
}

ModelSource open_model(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return open_hf_folder(path);
  for (const std::string_view suffix : {".bin", ".pt", ".pth", ".pkl", ".ckpt"}) {
    if (path.ends_with(suffix)) {
      refuse(path,
             ": pickled weights can run code when read and are never opened; convert them to "
             "safetensors or GGUF");
    }
  }
  if (path.ends_with(".safetensors"))
    refuse(path, ": give the folder that holds it and its config.json");
  return open_gguf(path);
}

}  // namespace varve::light
