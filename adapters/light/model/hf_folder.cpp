#include <ggml.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>

#include "adapters/light/model/hf_config.h"
#include "adapters/light/model/json_text.h"
#include "adapters/light/model/model_error.h"
#include "adapters/light/model/model_source.h"
#include "adapters/light/model/safetensors_check.h"

namespace varve::light {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFiles = 1024;

bool is_pickle(const fs::path& file) {
  static const std::set<std::string> kSuffixes = {".bin", ".pt", ".pth", ".pkl", ".ckpt"};
  return kSuffixes.contains(file.extension().string());
}

// The weight files: those that the index names, or the single one in the folder.
std::vector<std::string> weight_files(const fs::path& folder) {
  std::error_code ignored;
  std::set<std::string> names;
  const fs::path index = folder / "model.safetensors.index.json";
  if (fs::exists(index, ignored)) {
    const auto json = read_json(index.string());
    const auto map = json.is_object() ? json.find("weight_map") : json.end();
    if (!json.is_object() || map == json.end() || !map->is_object())
      refuse(index.string(), ": 'weight_map' is missing");
    for (const auto& [tensor, file] : map->items()) {
      const std::string name = file.is_string() ? file.get<std::string>() : "";
      if (!name.ends_with(".safetensors") || name.find('/') != std::string::npos) {
        refuse(index.string(), ": tensor '", tensor,
               "' must name a .safetensors file in the same folder, not '", name, "'");
      }
      names.insert(name);
    }
  } else {
    bool pickled = false;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      if (entry.path().extension() == ".safetensors")
        names.insert(entry.path().filename().string());
      pickled |= is_pickle(entry.path());
    }
    if (names.empty() && pickled) {
      refuse(
          folder.string(),
          ": only pickled weights (.bin, .pt, .pkl) are here; they can run code when read and are "
          "never opened: convert them to safetensors or GGUF");
    }
    if (names.size() > 1)
      refuse(folder.string(), ": ", names.size(), " .safetensors files and no index; expected one");
  }
  if (names.empty())
    refuse(folder.string(), ": no .safetensors file here; expected a HuggingFace model folder");
  if (names.size() > kMaxFiles)
    refuse(folder.string(), ": ", names.size(), " weight files; at most ", kMaxFiles);
  return {names.begin(), names.end()};
}

constexpr std::pair<std::string_view, std::string_view> kModelNames[] = {
    {"model.embed_tokens.", "token_embd."},
    {"model.norm.", "output_norm."},
    {"lm_head.", "output."}};
constexpr std::pair<std::string_view, std::string_view> kLayerNames[] = {
    {"self_attn.q_proj.", "attn_q."},          {"self_attn.k_proj.", "attn_k."},
    {"self_attn.v_proj.", "attn_v."},          {"self_attn.o_proj.", "attn_output."},
    {"self_attn.q_norm.", "attn_q_norm."},     {"self_attn.k_norm.", "attn_k_norm."},
    {"mlp.gate_proj.", "ffn_gate."},           {"mlp.up_proj.", "ffn_up."},
    {"mlp.down_proj.", "ffn_down."},           {"input_layernorm.", "attn_norm."},
    {"post_attention_layernorm.", "ffn_norm."}};

template <size_t N>
std::optional<std::string> rename(std::string_view name,
                                  const std::pair<std::string_view, std::string_view> (&names)[N]) {
  for (const auto& [from, to] : names) {
    if (name.starts_with(from)) return std::string(to) + std::string(name.substr(from.size()));
  }
  return std::nullopt;
}

// The name GGUF gives a tensor; nothing for one that no family here has.
std::optional<std::string> gguf_name(std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return rename(name, kModelNames);
  const std::string_view rest = name.substr(kLayers.size());
  const size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const auto role = rename(rest.substr(dot + 1), kLayerNames);
  if (!role) return std::nullopt;
  return "blk." + std::string(rest.substr(0, dot)) + "." + *role;
}

uint32_t float_type(const SafeTensor& tensor, const std::string& file) {
  if (tensor.dtype == "F32") return GGML_TYPE_F32;
  if (tensor.dtype == "F16") return GGML_TYPE_F16;
  if (tensor.dtype == "BF16") return GGML_TYPE_BF16;
  refuse(file, ": tensor '", tensor.name, "' has dtype ", tensor.dtype,
         "; expected F32, F16 or BF16");
}

void add_file(ModelSource& source, const std::string& path) {
  const auto index = static_cast<uint32_t>(source.files.size());
  source.files.emplace_back(path);
  for (const SafeTensor& tensor : check_safetensors(source.files.back(), path)) {
    if (tensor.name.ends_with("rotary_emb.inv_freq"))
      continue;  // a buffer of old exports, computed here
    const auto name = gguf_name(tensor.name);
    if (!name)
      refuse(path, ": tensor '", tensor.name,
             "' is not part of a model family that this engine runs");
    if (*name == "output.weight" && source.config.tied_embeddings) continue;
    if (tensor.shape.empty() || tensor.shape.size() > 2 || tensor.bytes == 0) {
      refuse(path, ": tensor '", tensor.name, "' has ", tensor.shape.size(),
             " dimensions; expected 1 or 2, none empty");
    }
    const uint64_t rows = tensor.shape.size() == 2 ? tensor.shape[0] : 1;
    const StoredTensor stored{
        index, float_type(tensor, path), rows, tensor.shape.back(), tensor.offset, tensor.bytes};
    if (!source.tensors.emplace(*name, stored).second) {
      refuse(path, ": tensor '", tensor.name, "' is in two files of this folder");
    }
  }
}

}  // namespace

ModelSource open_hf_folder(const std::string& path) {
  const fs::path folder(path);
  ModelSource source;
  source.path = path;
  const std::string config = (folder / "config.json").string();
  source.config = hf_config(read_text(config), config);
  for (const std::string& name : weight_files(folder)) add_file(source, (folder / name).string());
  check_tensors(source);
  return source;
}

}  // namespace varve::light
