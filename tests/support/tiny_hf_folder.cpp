#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/support/tiny_models.h"

namespace varve::test {
namespace {

using nlohmann::ordered_json;

const std::pair<const char*, const char*> kNames[] = {{"token_embd.", "model.embed_tokens."},
                                                      {"output_norm.", "model.norm."},
                                                      {"output.", "lm_head."},
                                                      {"attn_norm.", "input_layernorm."},
                                                      {"ffn_norm.", "post_attention_layernorm."},
                                                      {"attn_q_norm.", "self_attn.q_norm."},
                                                      {"attn_k_norm.", "self_attn.k_norm."},
                                                      {"attn_q.", "self_attn.q_proj."},
                                                      {"attn_k.", "self_attn.k_proj."},
                                                      {"attn_v.", "self_attn.v_proj."},
                                                      {"attn_output.", "self_attn.o_proj."},
                                                      {"ffn_gate.", "mlp.gate_proj."},
                                                      {"ffn_up.", "mlp.up_proj."},
                                                      {"ffn_down.", "mlp.down_proj."}};

std::string hf_name(const std::string& name) {
  std::string prefix, role = name;
  if (name.starts_with("blk.")) {
    const size_t dot = name.find('.', 4);
    prefix = "model.layers." + name.substr(4, dot - 4) + ".";
    role = name.substr(dot + 1);
  }
  for (const auto& [from, to] : kNames) {
    if (role.starts_with(from)) return prefix + to + role.substr(std::string(from).size());
  }
  throw std::runtime_error("no HuggingFace name for " + name);
}

void write_config(const light::ModelConfig& c, const std::string& path) {
  ordered_json config = {{"model_type", std::string(name_of(c.architecture))},
                         {"num_hidden_layers", c.n_layers},
                         {"hidden_size", c.n_embd},
                         {"intermediate_size", c.n_ff},
                         {"num_attention_heads", c.n_heads},
                         {"num_key_value_heads", c.n_kv_heads},
                         {"head_dim", c.head_dim},
                         {"vocab_size", c.vocab},
                         {"max_position_embeddings", c.trained_tokens},
                         {"rms_norm_eps", 1e-5},
                         {"rope_theta", c.rope_base},
                         {"hidden_act", "silu"},
                         {"tie_word_embeddings", c.tied_embeddings}};
  std::ofstream(path) << config.dump(2);
}

std::string encoded(const TinyTensor& tensor, ggml_type type) {
  std::string out(ggml_row_size(type, static_cast<int64_t>(tensor.cols)) * tensor.rows, '\0');
  ggml_quantize_chunk(type, tensor.values.data(), out.data(), 0, static_cast<int64_t>(tensor.rows),
                      static_cast<int64_t>(tensor.cols), nullptr);
  return out;
}

const char* dtype_name(ggml_type type) {
  return type == GGML_TYPE_F16 ? "F16" : type == GGML_TYPE_BF16 ? "BF16" : "F32";
}

}  // namespace

void write_hf_folder(const TinyModel& model, const std::string& folder, ggml_type type,
                     unsigned n_files) {
  write_config(model.config, folder + "/config.json");
  std::vector<ordered_json> headers(n_files, ordered_json::object());
  std::vector<std::string> data(n_files);
  ordered_json index = ordered_json::object();
  unsigned next = 0;
  const auto file_name = [&](unsigned i) {
    return n_files == 1 ? std::string("model.safetensors")
                        : "model-" + std::to_string(i) + ".safetensors";
  };
  for (const auto& [gguf, tensor] : model.tensors) {
    const unsigned file = next++ % n_files;
    const std::string name = hf_name(gguf);
    const size_t start = data[file].size();
    data[file] += encoded(tensor, type);
    ordered_json shape = ordered_json::array();
    if (tensor.rows > 1) shape.push_back(tensor.rows);
    shape.push_back(tensor.cols);
    headers[file][name] = {{"dtype", dtype_name(type)},
                           {"shape", shape},
                           {"data_offsets", {start, data[file].size()}}};
    index["weight_map"][name] = file_name(file);
  }
  for (unsigned i = 0; i < n_files; ++i) {
    const std::string header = headers[i].dump();
    const uint64_t length = header.size();
    std::ofstream out(folder + "/" + file_name(i), std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out << header << data[i];
    if (!out.flush()) throw std::runtime_error(folder + ": cannot be written");
  }
  if (n_files > 1) std::ofstream(folder + "/model.safetensors.index.json") << index.dump(2);
}

}  // namespace varve::test
