#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "adapters/light/model/model_error.h"
#include "adapters/light/model/model_source.h"

namespace varve::light {
namespace {

// Typed look-ups of one family's keys; `key` without the family's prefix.
class Values {
 public:
  Values(const GgufFile& file, const std::string& name, std::string family)
      : file_(file), name_(name), family_(std::move(family)) {}

  template <typename T>
  std::optional<T> find(const std::string& key, const char* expected) const {
    const auto found = file_.values.find(family_ + "." + key);
    if (found == file_.values.end()) return std::nullopt;
    const T* value = std::get_if<T>(&found->second.value);
    if (value == nullptr) {
      refuse(name_, ": at byte ", found->second.offset, ": key '", found->first,
             "' has the wrong type; expected ", expected);
    }
    return *value;
  }

  std::optional<uint32_t> count(const std::string& key, uint32_t least, uint32_t most) const {
    const auto value = find<uint64_t>(key, "one unsigned number");
    if (!value) return std::nullopt;
    if (*value < least || *value > most) {
      refuse(name_, ": key '", family_, ".", key, "' is ", *value, "; expected ", least, " to ",
             most);
    }
    return static_cast<uint32_t>(*value);
  }

  std::optional<float> real(const std::string& key, double least, double most) const {
    const auto value = find<double>(key, "one float");
    if (!value) return std::nullopt;
    if (!(*value >= least && *value <= most)) {
      refuse(name_, ": key '", family_, ".", key, "' is ", *value, "; expected ", least, " to ",
             most);
    }
    return static_cast<float>(*value);
  }

  template <typename T>
  T need(std::optional<T> value, const std::string& key) const {
    if (!value) refuse(name_, ": key '", family_, ".", key, "' is missing");
    return *value;
  }

 private:
  const GgufFile& file_;
  const std::string& name_;
  std::string family_;
};

std::string text_value(const GgufFile& file, const std::string& name, const std::string& key) {
  const auto found = file.values.find(key);
  if (found == file.values.end()) refuse(name, ": key '", key, "' is missing");
  const auto* text = std::get_if<std::string>(&found->second.value);
  if (text == nullptr)
    refuse(name, ": at byte ", found->second.offset, ": key '", key, "' must be a string");
  return *text;
}

Architecture architecture_of(const std::string& family, const std::string& name) {
  if (family == "llama") return Architecture::kLlama;
  if (family == "qwen2") return Architecture::kQwen2;
  if (family == "qwen3") return Architecture::kQwen3;
  if (family == "mistral3") return Architecture::kMistral;
  refuse(name, ": general.architecture is '", family,
         "'; this engine runs llama, mistral3, qwen2 and qwen3");
}

// ggml's magnitude for YaRN: 0.1 ln(factor) + 1, over the same with the model's own multiplier
// where it has one.
float yarn_magnitude(float factor, float log_multiplier) {
  const auto scale = [&](float m) {
    return factor <= 1.0f ? 1.0f : 0.1f * m * std::log(factor) + 1.0f;
  };
  return log_multiplier == 0.0f ? scale(1.0f) : scale(1.0f) / scale(log_multiplier);
}

RopeScalingConfig rope_scaling(const Values& values, const ModelConfig& config,
                               const std::string& name) {
  RopeScalingConfig out;
  const std::string kind =
      values.find<std::string>("rope.scaling.type", "a string").value_or("linear");
  auto factor = values.real("rope.scaling.factor", 0.0, 1e6);
  if (!factor) factor = values.real("rope.scale_linear", 0.0, 1e6);
  out.factor = factor.value_or(0.0f) == 0.0f ? 1.0f : *factor;
  if (kind == "none" || (kind == "linear" && out.factor == 1.0f)) {
    out.factor = 1.0f;
  } else if (kind == "linear") {
    out.kind = RopeScaling::kLinear;
  } else if (kind == "yarn") {
    out.kind = RopeScaling::kYarn;
    out.original_tokens = values.count("rope.scaling.original_context_length", 1, INT32_MAX)
                              .value_or(config.trained_tokens);
    out.beta_fast = values.real("rope.scaling.yarn_beta_fast", 0.0, 1e6).value_or(32.0f);
    out.beta_slow = values.real("rope.scaling.yarn_beta_slow", 0.0, 1e6).value_or(1.0f);
    out.magnitude =
        yarn_magnitude(out.factor,
                       values.real("rope.scaling.yarn_log_multiplier", 0.0, 1e3).value_or(0)) *
        values.real("rope.scaling.attn_factor", 0.0, 1e3).value_or(1.0f);
  } else {
    refuse(name, ": rope.scaling.type is '", kind, "'; expected none, linear or yarn");
  }
  return out;
}

void refuse_variants(const Values& values, const GgufFile& file, const std::string& name) {
  if (values.count("expert_count", 0, UINT32_MAX).value_or(0) != 0) {
    refuse(name, ": mixture-of-experts models are not supported; use a dense model");
  }
  if (values.real("attention.temperature_scale", -1e9, 1e9).value_or(0.0f) != 0.0f) {
    refuse(name, ": attention temperature scaling is not supported");
  }
  const auto split = file.values.find("split.count");
  const auto* parts =
      split == file.values.end() ? nullptr : std::get_if<uint64_t>(&split->second.value);
  if (split != file.values.end() && (parts == nullptr || *parts > 1)) {
    refuse(name, ": this is one part of a split model; merge the parts into one file first");
  }
}

}  // namespace

void check_vocabulary(const GgufFile& file, const std::string& name) {
  const std::string kind = text_value(file, name, "tokenizer.ggml.model");
  if (kind != "llama" && kind != "gpt2") {
    refuse(name, ": tokenizer.ggml.model is '", kind, "'; expected llama or gpt2");
  }
  if (!file.values.contains("tokenizer.ggml.tokens"))
    refuse(name, ": key 'tokenizer.ggml.tokens' is missing");
  if (kind == "gpt2" && !file.values.contains("tokenizer.ggml.merges")) {
    refuse(name, ": key 'tokenizer.ggml.merges' is missing; a gpt2 tokenizer needs it");
  }
}

ModelConfig gguf_config(const GgufFile& file, const std::string& name) {
  const std::string family = text_value(file, name, "general.architecture");
  ModelConfig config;
  config.architecture = architecture_of(family, name);
  const Values values(file, name, family);
  refuse_variants(values, file, name);
  check_vocabulary(file, name);
  const auto need = [&](const std::string& key, uint32_t most) {
    return values.need(values.count(key, 1, most), key);
  };
  config.n_layers = need("block_count", 512);
  config.n_embd = need("embedding_length", 1 << 17);
  config.n_ff = need("feed_forward_length", 1 << 20);
  config.n_heads = need("attention.head_count", 1 << 12);
  config.n_kv_heads = values.count("attention.head_count_kv", 1, 1 << 12).value_or(config.n_heads);
  config.trained_tokens = need("context_length", INT32_MAX);
  config.head_dim =
      values.count("attention.key_length", 1, 1 << 12).value_or(config.n_embd / config.n_heads);
  const uint32_t value_dim =
      values.count("attention.value_length", 1, 1 << 12).value_or(config.n_embd / config.n_heads);
  if (value_dim != config.head_dim) {
    refuse(name, ": keys are ", config.head_dim, " wide and values ", value_dim,
           "; expected the same");
  }
  config.rotary_dim = values.count("rope.dimension_count", 1, 1 << 12).value_or(config.head_dim);
  config.rope_base = values.real("rope.freq_base", 1.0, 1e12).value_or(10000.0f);
  config.rope_scaling = rope_scaling(values, config, name);
  const std::string eps = "attention.layer_norm_rms_epsilon";
  config.norm_eps = values.need(values.real(eps, 0.0, 0.1), eps);
  config.qk_norm = config.architecture == Architecture::kQwen3;
  config.rope_pairs_neighbour =
      config.architecture == Architecture::kLlama || config.architecture == Architecture::kMistral;
  return config;
}

namespace {

bool has_tensor(const ModelSource& source, const char* name) {
  return source.tensors.contains(name);
}

// Llama 3 files carry their frequency divisors as a tensor.
void read_freq_factors(ModelSource& source) {
  const auto found = source.tensors.find("rope_freqs.weight");
  if (found == source.tensors.end()) return;
  const StoredTensor& tensor = found->second;
  const uint32_t expected = source.config.rotary_dim / 2;
  if (tensor.type != GGML_TYPE_F32 || tensor.rows != 1 || tensor.cols != expected) {
    refuse(source.path, ": tensor 'rope_freqs.weight' must be ", expected, " f32 numbers");
  }
  RopeScalingConfig& scaling = source.config.rope_scaling;
  if (scaling.kind != RopeScaling::kNone) {
    refuse(source.path, ": has both rope_freqs.weight and rope.scaling; expected one");
  }
  scaling.kind = RopeScaling::kLlama3;
  scaling.freq_factors.resize(expected);
  if (!source.files[0].read_at(tensor.offset,
                               std::as_writable_bytes(std::span(scaling.freq_factors)))) {
    refuse(source.path, ": tensor 'rope_freqs.weight' cannot be read");
  }
  for (const float f : scaling.freq_factors) {
    if (!(f > 0.0f && f < 1e9f))
      refuse(source.path, ": tensor 'rope_freqs.weight' holds ", f, "; expected > 0");
  }
}

}  // namespace

ModelSource open_gguf(const std::string& path) {
  ModelSource source;
  source.path = path;
  source.files.emplace_back(path);
  const GgufFile file = check_gguf(source.files[0], path);
  source.config = gguf_config(file, path);
  const auto& tokens = std::get<GgufArray>(file.values.find("tokenizer.ggml.tokens")->second.value);
  for (const GgufTensor& tensor : file.tensors) {
    const uint64_t rows = tensor.dims[1] * tensor.dims[2] * tensor.dims[3];
    source.tensors[tensor.name] = {0,           tensor.type, rows, tensor.dims[0], tensor.offset,
                                   tensor.bytes};
  }
  const auto embedding = source.tensors.find("token_embd.weight");
  if (embedding == source.tensors.end()) refuse(path, ": tensor 'token_embd.weight' is missing");
  if (embedding->second.rows != tokens.count) {
    refuse(path, ": tensor 'token_embd.weight' has ", embedding->second.rows,
           " rows; expected one for each of the ", tokens.count, " tokens");
  }
  source.config.vocab = static_cast<uint32_t>(std::min<uint64_t>(tokens.count, UINT32_MAX));
  source.config.tied_embeddings = !has_tensor(source, "output.weight");
  source.config.qkv_bias = has_tensor(source, "blk.0.attn_q.bias");
  check_config(source.config, path);
  read_freq_factors(source);
  check_tensors(source);
  return source;
}

}  // namespace varve::light
