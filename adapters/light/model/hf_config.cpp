#include "adapters/light/model/hf_config.h"

#include <cmath>
#include <optional>
#include <utility>

#include "adapters/light/model/json_text.h"
#include "adapters/light/model/model_error.h"
#include "adapters/light/model/model_source.h"

namespace varve::light {
namespace {

using nlohmann::json;

// Typed look-ups in one JSON object; a null counts as absent.
class Fields {
 public:
  Fields(const json& object, const std::string& name) : object_(object), name_(name) {}

  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  std::optional<uint32_t> count(const char* key, uint32_t most) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number_unsigned() || value->get<uint64_t>() < 1 ||
        value->get<uint64_t>() > most) {
      refuse(name_, ": '", key, "' is ", excerpt(*value), "; expected a whole number from 1 to ",
             most);
    }
    return value->get<uint32_t>();
  }
  std::optional<float> real(const char* key, double least, double most) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most)) {
      refuse(name_, ": '", key, "' is ", excerpt(*value), "; expected a number from ", least,
             " to ", most);
    }
    return value->get<float>();
  }
  bool flag(const char* key, bool otherwise) const {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean())
      refuse(name_, ": '", key, "' is ", excerpt(*value), "; expected true or false");
    return value->get<bool>();
  }
  std::optional<std::string> text(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string())
      refuse(name_, ": '", key, "' is ", excerpt(*value), "; expected a string");
    return value->get<std::string>();
  }
  template <typename T>
  T need(std::optional<T> value, const char* key) const {
    if (!value) refuse(name_, ": '", key, "' is missing");
    return *value;
  }

 private:
  static std::string excerpt(const json& value) {
    return value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 80);
  }

  const json& object_;
  const std::string& name_;
};

Architecture architecture_of(const std::string& type, const std::string& name) {
  for (const auto a :
       {Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3, Architecture::kMistral}) {
    if (name_of(a) == type) return a;
  }
  refuse(name, ": model_type is '", type, "'; this engine runs llama, mistral, qwen2 and qwen3");
}

// Frequency divisors of Llama 3.1: long waves are stretched by `factor`, short ones stay, those
// between are blended.
std::vector<float> llama3_factors(const Fields& scaling, const ModelConfig& config) {
  const auto need = [&](const char* key) {
    return double{scaling.need(scaling.real(key, 1e-6, 1e6), key)};
  };
  const double factor = need("factor"), low = need("low_freq_factor"),
               high = need("high_freq_factor");
  const char* original_key = "original_max_position_embeddings";
  const double original = scaling.need(scaling.count(original_key, INT32_MAX), original_key);
  std::vector<float> factors;
  for (uint32_t i = 0; i < config.rotary_dim / 2; ++i) {
    const double frequency = std::pow(double{config.rope_base}, -2.0 * i / config.rotary_dim);
    const double turns =
        original * frequency / (2.0 * M_PI);  // of this pair over the original length
    double kept = high > low ? (turns - low) / (high - low) : turns >= high;
    kept = std::min(1.0, std::max(0.0, kept));
    factors.push_back(static_cast<float>(1.0 / ((1.0 - kept) / factor + kept)));
  }
  return factors;
}

RopeScalingConfig scaling_of(const Fields& scaling, const ModelConfig& config,
                             const std::string& name) {
  RopeScalingConfig out;
  std::optional<std::string> kind = scaling.text("rope_type");
  if (!kind) kind = scaling.text("type");
  if (!kind || *kind == "default") return out;
  out.factor = scaling.real("factor", 1.0, 1e6).value_or(1.0f);
  if (*kind == "linear") {
    out.kind = RopeScaling::kLinear;
  } else if (*kind == "yarn") {
    out.kind = RopeScaling::kYarn;
    out.original_tokens = scaling.count("original_max_position_embeddings", INT32_MAX)
                              .value_or(config.trained_tokens);
    out.beta_fast = scaling.real("beta_fast", 0.0, 1e6).value_or(32.0f);
    out.beta_slow = scaling.real("beta_slow", 0.0, 1e6).value_or(1.0f);
    out.magnitude =
        scaling.real("attention_factor", 0.0, 1e3).value_or(0.1f * std::log(out.factor) + 1.0f);
  } else if (*kind == "llama3") {
    out.kind = RopeScaling::kLlama3;
    out.freq_factors = llama3_factors(scaling, config);
    out.factor = 1.0f;
  } else {
    refuse(name, ": RoPE scaling '", *kind, "' is not supported; expected linear, yarn or llama3");
  }
  return out;
}

void read_rope(const Fields& fields, ModelConfig& config, const std::string& name) {
  const json* scaling = fields.find("rope_scaling");
  if (const json* parameters = fields.find("rope_parameters")) scaling = parameters;
  if (scaling != nullptr && !scaling->is_object())
    refuse(name, ": the RoPE scaling must be an object");
  std::optional<float> base = fields.real("rope_theta", 1.0, 1e12);
  if (scaling != nullptr && !base) base = Fields(*scaling, name).real("rope_theta", 1.0, 1e12);
  config.rope_base = base.value_or(10000.0f);
  const float part = fields.real("partial_rotary_factor", 0.01, 1.0).value_or(1.0f);
  config.rotary_dim = static_cast<uint32_t>(part * static_cast<float>(config.head_dim));
  if (config.rotary_dim < 2 || config.rotary_dim % 2 != 0)
    refuse(name, ": the rotary size ", config.rotary_dim, " must be even");
  if (scaling != nullptr) config.rope_scaling = scaling_of(Fields(*scaling, name), config, name);
}

uint32_t sliding_window(const Fields& fields, const ModelConfig& config, const std::string& name) {
  if (config.architecture == Architecture::kMistral)
    return fields.count("sliding_window", INT32_MAX).value_or(0);
  if (fields.flag("use_sliding_window", false))
    refuse(name, ": use_sliding_window is not supported for this family");
  return 0;
}

}  // namespace

ModelConfig hf_config(const std::string& text, const std::string& name) {
  const json object = parse_json(text, name);
  if (!object.is_object()) refuse(name, ": expected a JSON object");
  const Fields fields(object, name);
  ModelConfig config;
  config.architecture = architecture_of(fields.need(fields.text("model_type"), "model_type"), name);
  const auto need = [&](const char* key, uint32_t most) {
    return fields.need(fields.count(key, most), key);
  };
  config.n_layers = need("num_hidden_layers", 512);
  config.n_embd = need("hidden_size", 1 << 17);
  config.n_ff = need("intermediate_size", 1 << 20);
  config.n_heads = need("num_attention_heads", 1 << 12);
  config.n_kv_heads = fields.count("num_key_value_heads", 1 << 12).value_or(config.n_heads);
  const bool wide = config.architecture == Architecture::kQwen3;  // its default, whatever the width
  config.head_dim =
      fields.count("head_dim", 1 << 12).value_or(wide ? 128 : config.n_embd / config.n_heads);
  config.vocab = need("vocab_size", 1 << 24);
  config.trained_tokens = need("max_position_embeddings", INT32_MAX);
  config.norm_eps = fields.real("rms_norm_eps", 0.0, 0.1).value_or(1e-6f);
  config.tied_embeddings = fields.flag("tie_word_embeddings", false);
  config.qkv_bias = fields.flag("attention_bias", config.architecture == Architecture::kQwen2);
  config.qk_norm = config.architecture == Architecture::kQwen3;
  if (const std::string act = fields.text("hidden_act").value_or("silu"); act != "silu") {
    refuse(name, ": hidden_act is '", act, "'; expected silu");
  }
  if (fields.find("quantization_config") != nullptr) {
    refuse(name,
           ": quantised HuggingFace folders are not supported; use the original weights or a GGUF "
           "file");
  }
  read_rope(fields, config, name);
  config.sliding_window = sliding_window(fields, config, name);
  check_config(config, name);
  return config;
}

}  // namespace varve::light
