#include "tests/support/tiny_models.h"

#include <gguf.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <stdexcept>

namespace varve::test {
namespace {

using light::Architecture;
using light::ModelConfig;

constexpr uint32_t kVocab = 264;

bool starts_pair_order(const ModelConfig& config) {
  return config.architecture == Architecture::kLlama ||
         config.architecture == Architecture::kMistral;
}

float to_bf16(float value) {
  ggml_bf16_t out;
  ggml_fp32_to_bf16_row_ref(&value, &out, 1);
  return ggml_bf16_to_fp32(out);
}

class Builder {
 public:
  Builder(TinyModel& model, const TinyOptions& options)
      : model_(model), options_(options), random_(options.seed) {}

  void matrix(const std::string& name, uint64_t rows, uint64_t cols) {
    add(name, rows, cols, 0.0f, std::sqrt(3.0f / static_cast<float>(cols)));
  }
  void norm(const std::string& name, uint64_t cols) { add(name, 1, cols, 1.0f, 0.2f); }
  void bias(const std::string& name, uint64_t cols) { add(name, 1, cols, 0.0f, 0.5f); }

 private:
  void add(const std::string& name, uint64_t rows, uint64_t cols, float centre, float width) {
    TinyTensor tensor{rows, cols, std::vector<float>(rows * cols)};
    for (float& v : tensor.values) {
      // The engine's bits, not a distribution's: the same numbers with every standard library.
      const float unit = static_cast<float>(random_() >> 40) / 8388608.0f - 1.0f;
      v = centre + width * unit;
      if (options_.bf16_values) v = to_bf16(v);
    }
    model_.tensors[name] = std::move(tensor);
  }

  TinyModel& model_;
  const TinyOptions& options_;
  std::mt19937_64 random_;
};

ModelConfig shape_of(Architecture family, const TinyOptions& o) {
  ModelConfig c;
  c.architecture = family;
  c.n_layers = o.n_layers;
  c.n_embd = o.n_embd;
  c.n_ff = o.n_ff;
  c.n_heads = o.n_heads;
  c.n_kv_heads = o.n_kv_heads;
  c.head_dim = o.head_dim;
  c.rotary_dim = o.head_dim;
  c.vocab = kVocab;
  c.trained_tokens = o.trained_tokens;
  c.tied_embeddings = o.tied;
  c.qkv_bias = family == Architecture::kQwen2;
  c.qk_norm = family == Architecture::kQwen3;
  c.rope_pairs_neighbour = starts_pair_order(c);
  if (o.llama3_rope) {
    c.rope_scaling.kind = light::RopeScaling::kLlama3;
    for (uint32_t i = 0; i < o.head_dim / 2; ++i) {
      c.rope_scaling.freq_factors.push_back(1.0f + static_cast<float>(i) * 0.25f);
    }
  }
  return c;
}

}  // namespace

TinyModel tiny_model(Architecture family, const TinyOptions& options) {
  TinyModel model{shape_of(family, options), {}};
  const ModelConfig& c = model.config;
  Builder b(model, options);
  b.matrix("token_embd.weight", c.vocab, c.n_embd);
  b.norm("output_norm.weight", c.n_embd);
  if (!c.tied_embeddings) b.matrix("output.weight", c.vocab, c.n_embd);
  for (uint32_t i = 0; i < c.n_layers; ++i) {
    const std::string blk = "blk." + std::to_string(i) + ".";
    b.norm(blk + "attn_norm.weight", c.n_embd);
    b.matrix(blk + "attn_q.weight", c.q_rows(), c.n_embd);
    b.matrix(blk + "attn_k.weight", c.kv_rows(), c.n_embd);
    b.matrix(blk + "attn_v.weight", c.kv_rows(), c.n_embd);
    b.matrix(blk + "attn_output.weight", c.n_embd, c.q_rows());
    b.norm(blk + "ffn_norm.weight", c.n_embd);
    b.matrix(blk + "ffn_gate.weight", c.n_ff, c.n_embd);
    b.matrix(blk + "ffn_up.weight", c.n_ff, c.n_embd);
    b.matrix(blk + "ffn_down.weight", c.n_embd, c.n_ff);
    if (c.qkv_bias) {
      b.bias(blk + "attn_q.bias", c.q_rows());
      b.bias(blk + "attn_k.bias", c.kv_rows());
      b.bias(blk + "attn_v.bias", c.kv_rows());
    }
    if (c.qk_norm) {
      b.norm(blk + "attn_q_norm.weight", c.head_dim);
      b.norm(blk + "attn_k_norm.weight", c.head_dim);
    }
  }
  return model;
}

namespace {

using Gguf = std::unique_ptr<gguf_context, decltype(&gguf_free)>;

std::string utf8(uint32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

// GPT-2 writes the bytes that do not print as the characters from U+0100 on.
std::string byte_token(unsigned byte) {
  const auto prints = [](unsigned b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  if (prints(byte)) return utf8(byte);
  unsigned code = 256;
  for (unsigned b = 0; b < byte; ++b) code += prints(b) ? 0 : 1;
  return utf8(code);
}

struct Vocabulary {
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  std::vector<float> scores;

  void add(const std::string& text, int32_t type, float score = 0.0f) {
    tokens.push_back(text);
    types.push_back(type);
    scores.push_back(score);
  }
};

Vocabulary sentencepiece_vocabulary() {
  Vocabulary v;
  v.add("<unk>", 2);
  v.add("<s>", 3);
  v.add("</s>", 3);
  for (unsigned b = 0; b < 256; ++b) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", b);
    v.add(text, 6);
  }
  float score = -1.0f;
  for (const char* piece : {"\xE2\x96\x81", "e", "t", "th", "the"}) v.add(piece, 1, score--);
  return v;
}

Vocabulary bpe_vocabulary() {
  Vocabulary v;
  for (unsigned b = 0; b < 256; ++b) v.add(byte_token(b), 1);
  const std::pair<std::string, std::string> merges[] = {
      {"t", "h"}, {"th", "e"}, {"i", "n"}, {"a", "n"}, {"an", "d"}};
  for (const auto& [left, right] : merges) {
    v.add(left + right, 1);
    v.merges.push_back(left + " " + right);
  }
  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) v.add(special, 3);
  return v;
}

void set_strings(gguf_context* out, const char* key, const std::vector<std::string>& values) {
  std::vector<const char*> pointers;
  for (const std::string& v : values) pointers.push_back(v.c_str());
  gguf_set_arr_str(out, key, pointers.data(), pointers.size());
}

void add_vocabulary(gguf_context* out, const ModelConfig& config) {
  const bool bpe = !starts_pair_order(config);
  const Vocabulary v = bpe ? bpe_vocabulary() : sentencepiece_vocabulary();
  gguf_set_val_str(out, "tokenizer.ggml.model", bpe ? "gpt2" : "llama");
  set_strings(out, "tokenizer.ggml.tokens", v.tokens);
  gguf_set_arr_data(out, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, v.types.data(),
                    v.types.size());
  if (bpe) {
    gguf_set_val_str(out, "tokenizer.ggml.pre", "qwen2");
    set_strings(out, "tokenizer.ggml.merges", v.merges);
    gguf_set_val_u32(out, "tokenizer.ggml.bos_token_id", kVocab - 3);
    gguf_set_val_u32(out, "tokenizer.ggml.eos_token_id", kVocab - 1);
    gguf_set_val_bool(out, "tokenizer.ggml.add_bos_token", false);
  } else {
    gguf_set_arr_data(out, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, v.scores.data(),
                      v.scores.size());
    gguf_set_val_u32(out, "tokenizer.ggml.bos_token_id", 1);
    gguf_set_val_u32(out, "tokenizer.ggml.eos_token_id", 2);
  }
  gguf_set_val_str(out, "tokenizer.chat_template",
                   "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
                   "message['content'] + "
                   "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
                   "'<|im_start|>assistant\n' }}"
                   "{% endif %}");
}

void add_values(gguf_context* out, const ModelConfig& c) {
  const std::string family =
      c.architecture == Architecture::kMistral ? "mistral3" : std::string(name_of(c.architecture));
  const auto u32 = [&](const char* key, uint32_t value) {
    gguf_set_val_u32(out, (family + "." + key).c_str(), value);
  };
  const auto f32 = [&](const char* key, float value) {
    gguf_set_val_f32(out, (family + "." + key).c_str(), value);
  };
  gguf_set_val_str(out, "general.architecture", family.c_str());
  u32("block_count", c.n_layers);
  u32("context_length", c.trained_tokens);
  u32("embedding_length", c.n_embd);
  u32("feed_forward_length", c.n_ff);
  u32("attention.head_count", c.n_heads);
  u32("attention.head_count_kv", c.n_kv_heads);
  u32("attention.key_length", c.head_dim);
  u32("attention.value_length", c.head_dim);
  u32("rope.dimension_count", c.rotary_dim);
  u32("vocab_size", c.vocab);
  f32("rope.freq_base", c.rope_base);
  f32("attention.layer_norm_rms_epsilon", c.norm_eps);
}

// Half-split rows to neighbouring pairs, head by head.
std::vector<float> pair_rows(const TinyTensor& tensor, const ModelConfig& config) {
  std::vector<float> out(tensor.values);
  const uint64_t half = config.rotary_dim / 2, width = tensor.rows == 1 ? 1 : tensor.cols;
  const uint64_t heads = tensor.values.size() / width / config.head_dim;
  for (uint64_t h = 0; h < heads; ++h) {
    for (uint64_t i = 0; i < 2 * half; ++i) {
      const uint64_t to = h * config.head_dim + (i < half ? 2 * i : 2 * (i - half) + 1);
      std::copy_n(
          tensor.values.begin() + static_cast<std::ptrdiff_t>((h * config.head_dim + i) * width),
          width, out.begin() + static_cast<std::ptrdiff_t>(to * width));
    }
  }
  return out;
}

bool is_rotated(const std::string& name) {
  return name.find(".attn_q.") != std::string::npos || name.find(".attn_k.") != std::string::npos;
}

// The types whose quantisers search grids: seconds of table building for a few kilobytes.
bool is_slow_to_quantise(ggml_type type) {
  return ggml_quantize_requires_imatrix(type) || type == GGML_TYPE_IQ3_XXS ||
         type == GGML_TYPE_IQ3_S || type == GGML_TYPE_IQ2_S || type == GGML_TYPE_IQ1_M;
}

// Any bytes are weights of those types as long as no scale is infinite, which needs this bit in an
// f16.
void fill(std::vector<uint8_t>& out) {
  std::minstd_rand random(7);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random() >> 8) & 0xBF;
}

std::vector<uint8_t> encode(const std::vector<float>& values, uint64_t rows, uint64_t cols,
                            ggml_type type) {
  std::vector<uint8_t> out(ggml_row_size(type, static_cast<int64_t>(cols)) * rows);
  if (type == GGML_TYPE_F32) {
    std::memcpy(out.data(), values.data(), out.size());
  } else if (is_slow_to_quantise(type)) {
    fill(out);
  } else {
    ggml_quantize_chunk(type, values.data(), out.data(), 0, static_cast<int64_t>(rows),
                        static_cast<int64_t>(cols), nullptr);
  }
  return out;
}

class GgufWriter {
 public:
  GgufWriter(gguf_context* out, size_t tensors)
      : out_(out),
        scratch_(ggml_init({ggml_tensor_overhead() * tensors, nullptr, true}), ggml_free) {}

  void add(const std::string& name, const std::vector<float>& values, uint64_t rows, uint64_t cols,
           ggml_type type) {
    encoded_.push_back(encode(values, rows, cols, type));
    ggml_tensor* tensor = rows == 1
                              ? ggml_new_tensor_1d(scratch_.get(), type, static_cast<int64_t>(cols))
                              : ggml_new_tensor_2d(scratch_.get(), type, static_cast<int64_t>(cols),
                                                   static_cast<int64_t>(rows));
    ggml_set_name(tensor, name.c_str());
    gguf_add_tensor(out_, tensor);
    gguf_set_tensor_data(out_, name.c_str(), encoded_.back().data());
  }

 private:
  gguf_context* out_;
  std::unique_ptr<ggml_context, decltype(&ggml_free)> scratch_;
  std::vector<std::vector<uint8_t>> encoded_;
};

}  // namespace

void write_gguf(const TinyModel& model, const std::string& path, ggml_type type,
                ggml_type value_type) {
  const Gguf out(gguf_init_empty(), gguf_free);
  add_values(out.get(), model.config);
  add_vocabulary(out.get(), model.config);
  GgufWriter writer(out.get(), model.tensors.size() + 1);
  for (const auto& [name, tensor] : model.tensors) {
    const bool is_value = name.find(".attn_v.weight") != std::string::npos;
    const ggml_type stored = tensor.rows == 1 ? GGML_TYPE_F32 : is_value ? value_type : type;
    const bool paired = model.config.rope_pairs_neighbour && is_rotated(name);
    writer.add(name, paired ? pair_rows(tensor, model.config) : tensor.values, tensor.rows,
               tensor.cols, stored);
  }
  const std::vector<float>& factors = model.config.rope_scaling.freq_factors;
  if (!factors.empty()) writer.add("rope_freqs.weight", factors, 1, factors.size(), GGML_TYPE_F32);
  if (!gguf_write_to_file(out.get(), path.c_str(), false))
    throw std::runtime_error(path + ": cannot be written");
}

void write_gguf(const TinyModel& model, const std::string& path, ggml_type type) {
  write_gguf(model, path, type, type);
}

TempDir::TempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "varve-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  root_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(root_, ignored);
}

std::string TempDir::path(const std::string& name) const {
  return name.empty() ? root_ : root_ + "/" + name;
}

}  // namespace varve::test
