#include "adapters/light/model/load_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <llama.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "adapters/light/model/libllama.h"
#include "adapters/light/model/model_error.h"
#include "adapters/light/model/model_source.h"
#include "tests/support/tiny_models.h"

namespace varve::light {
namespace {

using kernels::PackedWeights;
using kernels::WeightFormat;
using test::TempDir;
using test::tiny_model;
using test::TinyModel;
using test::TinyOptions;
using testing::HasSubstr;

constexpr Architecture kFamilies[] = {Architecture::kLlama, Architecture::kQwen2,
                                      Architecture::kQwen3, Architecture::kMistral};

// Rows of `parts` as one table.
std::vector<float> rows_of(const RowParts& parts) {
  std::vector<float> out;
  for (const PackedWeights& part : parts) {
    for (size_t r = 0; r < part.n(); ++r) {
      for (size_t c = 0; c < part.k(); ++c) out.push_back(part.at(r, c));
    }
  }
  return out;
}

std::vector<float> rows_of(const PackedWeights& matrix) {
  std::vector<float> out;
  for (size_t r = 0; r < matrix.n(); ++r) {
    for (size_t c = 0; c < matrix.k(); ++c) out.push_back(matrix.at(r, c));
  }
  return out;
}

std::vector<float> joined(const TinyModel& model, std::initializer_list<const char*> names) {
  std::vector<float> out;
  for (const char* name : names) {
    const auto& values = model.tensors.at(name).values;
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

void expect_same_weights(const Model& loaded, const TinyModel& made) {
  ASSERT_EQ(loaded.layers.size(), 2u);
  const Model::Layer& layer = loaded.layers[1];
  EXPECT_EQ(rows_of(layer.wqkv),
            joined(made, {"blk.1.attn_q.weight", "blk.1.attn_k.weight", "blk.1.attn_v.weight"}));
  EXPECT_EQ(rows_of(layer.w_gate_up),
            joined(made, {"blk.1.ffn_gate.weight", "blk.1.ffn_up.weight"}));
  EXPECT_EQ(rows_of(layer.wo), made.tensors.at("blk.1.attn_output.weight").values);
  EXPECT_EQ(rows_of(layer.w_down), made.tensors.at("blk.1.ffn_down.weight").values);
  EXPECT_EQ(layer.attn_norm, made.tensors.at("blk.1.attn_norm.weight").values);
  EXPECT_EQ(layer.ffn_norm, made.tensors.at("blk.1.ffn_norm.weight").values);
  EXPECT_EQ(loaded.output_norm, made.tensors.at("output_norm.weight").values);
  const char* head = made.config.tied_embeddings ? "token_embd.weight" : "output.weight";
  EXPECT_EQ(rows_of(loaded.output), made.tensors.at(head).values);
  std::vector<float> row(made.config.n_embd);
  loaded.embedding_row(17, row.data());
  const auto& table = made.tensors.at("token_embd.weight").values;
  EXPECT_TRUE(std::equal(row.begin(), row.end(), table.begin() + 17 * made.config.n_embd));
  if (made.config.qkv_bias) {
    EXPECT_EQ(layer.bias_qkv,
              joined(made, {"blk.1.attn_q.bias", "blk.1.attn_k.bias", "blk.1.attn_v.bias"}));
  } else {
    EXPECT_TRUE(layer.bias_qkv.empty());
  }
  if (made.config.qk_norm) {
    EXPECT_EQ(layer.q_norm, made.tensors.at("blk.1.attn_q_norm.weight").values);
    EXPECT_EQ(layer.k_norm, made.tensors.at("blk.1.attn_k_norm.weight").values);
  } else {
    EXPECT_TRUE(layer.q_norm.empty() && layer.k_norm.empty());
  }
}

TEST(LoadModelTest, GgufOfEveryFamilyGivesTheWeightsThatWentIn) {
  for (const Architecture family : kFamilies) {
    for (const bool tied : {false, true}) {
      SCOPED_TRACE(std::string(name_of(family)) + (tied ? " tied" : ""));
      const TempDir dir;
      const TinyModel made = tiny_model(family, {.tied = tied, .bf16_values = tied});
      write_gguf(made, dir.path("m.gguf"));
      const Model loaded = load_model(dir.path("m.gguf"));
      expect_same_weights(loaded, made);
      EXPECT_EQ(loaded.output.format(), tied ? WeightFormat::kBf16 : WeightFormat::kF32);
      EXPECT_EQ(loaded.embedding.n(), tied ? 0u : made.config.vocab);
    }
  }
}

TEST(LoadModelTest, FolderOfEveryFamilyGivesTheWeightsThatWentIn) {
  for (const Architecture family : kFamilies) {
    for (const unsigned files : {1u, 3u}) {
      SCOPED_TRACE(std::string(name_of(family)) + " in " + std::to_string(files) + " files");
      const TempDir dir;
      const TinyModel made = tiny_model(family, {.bf16_values = true});
      write_hf_folder(made, dir.path(), files == 1 ? GGML_TYPE_BF16 : GGML_TYPE_F32, files);
      const Model loaded = load_model(dir.path());
      expect_same_weights(loaded, made);
      EXPECT_EQ(loaded.config.n_kv_heads, 2u);
      EXPECT_EQ(loaded.config.trained_tokens, 512u);
    }
  }
}

TEST(LoadModelTest, ConfigHoldsWhatTheFileSays) {
  const TempDir dir;
  const TinyModel made = tiny_model(Architecture::kLlama, {.tied = true, .llama3_rope = true});
  write_gguf(made, dir.path("m.gguf"));
  const ModelConfig c = open_model(dir.path("m.gguf")).config;
  EXPECT_EQ(c.architecture, Architecture::kLlama);
  EXPECT_EQ(c.n_layers, 2u);
  EXPECT_EQ(c.n_embd, 256u);
  EXPECT_EQ(c.n_ff, 512u);
  EXPECT_EQ(c.n_heads, 8u);
  EXPECT_EQ(c.n_kv_heads, 2u);
  EXPECT_EQ(c.head_dim, 32u);
  EXPECT_EQ(c.rotary_dim, 32u);
  EXPECT_EQ(c.vocab, 264u);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_TRUE(c.rope_pairs_neighbour);
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::kLlama3);
  EXPECT_EQ(c.rope_scaling.freq_factors, made.config.rope_scaling.freq_factors);
}

// Types that ggml can quantise to; the others exist only for activations or whole numbers.
std::vector<ggml_type> weight_types() {
  std::vector<ggml_type> out;
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const auto* traits = ggml_get_type_traits(static_cast<ggml_type>(i));
    if (i != GGML_TYPE_F32 && traits->type_size > 0 && traits->to_float != nullptr &&
        i != GGML_TYPE_Q8_1 && i != GGML_TYPE_Q8_K) {
      out.push_back(static_cast<ggml_type>(i));
    }
  }
  return out;
}

TEST(LoadModelTest, EveryTypeIsUnpackedAsGgmlDoes) {
  for (const ggml_type type : weight_types()) {
    SCOPED_TRACE(ggml_type_name(type));
    const TempDir dir;
    const TinyModel made = tiny_model(Architecture::kQwen2, {.n_layers = 1});
    write_gguf(made, dir.path("m.gguf"), GGML_TYPE_F32, type);
    const ModelSource source = open_model(dir.path("m.gguf"));
    const StoredTensor& stored = source.tensors.at("blk.0.attn_v.weight");
    std::vector<std::byte> bytes(stored.bytes);
    ASSERT_TRUE(source.files[0].read_at(stored.offset, bytes));
    std::vector<float> want(stored.rows * stored.cols);
    ggml_get_type_traits(type)->to_float(bytes.data(), want.data(),
                                         static_cast<int64_t>(want.size()));

    const Model loaded = load_model(dir.path("m.gguf"));
    const PackedWeights& values = loaded.layers[0].wqkv.back();
    std::vector<float> got = rows_of(values);
    if (got.size() > want.size())
      got.erase(got.begin(), got.end() - static_cast<std::ptrdiff_t>(want.size()));
    ASSERT_EQ(got.size(), want.size());
    // Group parameters are rounded to f16, by up to 2^-11 of scale times code (at most twice the
    // largest weight) and of the min; bf16 stands in where there is no coded form.
    const WeightFormat format = values.format();
    const float relative = format == WeightFormat::kBf16 ? 0x1p-8f : 3 * 0x1p-11f;
    float largest = 0.0f;
    for (const float w : want) largest = std::max(largest, std::abs(w));
    for (size_t i = 0; i < want.size(); ++i) {
      const float slack = format == WeightFormat::kBf16 ? std::abs(want[i]) : largest;
      ASSERT_NEAR(got[i], want[i], relative * slack) << "element " << i;
    }
  }
}

TEST(LoadModelTest, TypesWithOneScaleAreExact) {
  for (const ggml_type type : {GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1,
                               GGML_TYPE_Q8_0, GGML_TYPE_IQ4_NL, GGML_TYPE_BF16, GGML_TYPE_F16}) {
    SCOPED_TRACE(ggml_type_name(type));
    const TempDir dir;
    const TinyModel made = tiny_model(Architecture::kQwen3, {.n_layers = 1});
    write_gguf(made, dir.path("m.gguf"), type);
    const ModelSource source = open_model(dir.path("m.gguf"));
    const StoredTensor& stored = source.tensors.at("blk.0.attn_output.weight");
    std::vector<std::byte> bytes(stored.bytes);
    ASSERT_TRUE(source.files[0].read_at(stored.offset, bytes));
    std::vector<float> want(stored.rows * stored.cols);
    ggml_get_type_traits(type)->to_float(bytes.data(), want.data(),
                                         static_cast<int64_t>(want.size()));
    const std::vector<float> got = rows_of(load_model(dir.path("m.gguf")).layers[0].wo);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_FLOAT_EQ(got[i], want[i]) << "element " << i;
  }
}

TEST(LoadModelTest, F16ThatFitsBf16StaysAtSixteenBits) {
  for (const bool fits : {true, false}) {
    const TempDir dir;
    write_gguf(tiny_model(Architecture::kQwen3, {.n_layers = 1, .bf16_values = fits}),
               dir.path("m.gguf"), GGML_TYPE_F16);
    const Model loaded = load_model(dir.path("m.gguf"));
    EXPECT_EQ(loaded.layers[0].wo.format(), fits ? WeightFormat::kBf16 : WeightFormat::kF32);
  }
}

TEST(LoadModelTest, MixedFormatsBecomeSeveralParts) {
  const TempDir dir;
  const TinyModel made = tiny_model(Architecture::kLlama);
  write_gguf(made, dir.path("m.gguf"), GGML_TYPE_Q4_K, GGML_TYPE_Q6_K);
  const Model loaded = load_model(dir.path("m.gguf"));
  const RowParts& parts = loaded.layers[0].wqkv;
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].format(), WeightFormat::kW4);
  EXPECT_EQ(parts[0].n(), 256u + 64u);
  EXPECT_EQ(parts[1].format(), WeightFormat::kW8);
  EXPECT_EQ(parts[1].n(), 64u);
  EXPECT_EQ(loaded.layers[0].w_gate_up.size(), 1u);
}

TEST(LoadModelTest, OneThreadAndManyGiveTheSame) {
  const TempDir dir;
  write_gguf(tiny_model(Architecture::kLlama), dir.path("m.gguf"), GGML_TYPE_Q4_1);
  const Model one = load_model(dir.path("m.gguf"), {.threads = 1});
  const Model many = load_model(dir.path("m.gguf"), {.threads = 5});
  EXPECT_EQ(rows_of(one.layers[1].wqkv), rows_of(many.layers[1].wqkv));
  EXPECT_EQ(rows_of(one.output), rows_of(many.output));
}

TEST(LoadModelTest, ProgressReachesTheTotalAndCanStop) {
  const TempDir dir;
  write_gguf(tiny_model(Architecture::kLlama), dir.path("m.gguf"));
  uint64_t last = 0, all = 0;
  load_model(dir.path("m.gguf"), {.progress = [&](uint64_t done, uint64_t total) {
               EXPECT_GT(done, last);
               last = done;
               all = total;
               return true;
             }});
  EXPECT_EQ(last, all);
  EXPECT_GT(all, 0u);
  EXPECT_THROW(
      load_model(dir.path("m.gguf"), {.progress = [](uint64_t, uint64_t) { return false; }}),
      ModelError);
}

TEST(LoadModelTest, TruncationAfterTheCheckIsAnError) {
  const TempDir dir;
  const std::string path = dir.path("m.gguf");
  write_gguf(tiny_model(Architecture::kLlama), path);
  try {
    load_model(path, {.threads = 1, .progress = [&](uint64_t, uint64_t) {
                        std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
                        return true;
                      }});
    FAIL() << "expected a ModelError";
  } catch (const ModelError& e) {
    EXPECT_THAT(e.what(), HasSubstr("cannot be read"));
  }
}

TEST(LoadModelTest, NumbersThatAreNotFiniteAreRefused) {
  const TempDir dir;
  TinyModel made = tiny_model(Architecture::kLlama);
  made.tensors["blk.0.ffn_up.weight"].values[100] = NAN;
  write_gguf(made, dir.path("m.gguf"));
  try {
    load_model(dir.path("m.gguf"));
    FAIL() << "expected a ModelError";
  } catch (const ModelError& e) {
    EXPECT_THAT(e.what(),
                HasSubstr("tensor 'blk.0.ffn_up.weight' holds numbers that are not finite"));
  }
}

TEST(TinyModelTest, LibllamaReadsEveryFamily) {
  prepare_libllama();
  for (const Architecture family : kFamilies) {
    SCOPED_TRACE(name_of(family));
    const TempDir dir;
    write_gguf(tiny_model(family), dir.path("m.gguf"), GGML_TYPE_Q8_0);
    llama_model* model =
        llama_model_load_from_file(dir.path("m.gguf").c_str(), llama_model_default_params());
    ASSERT_NE(model, nullptr) << take_library_error();
    EXPECT_EQ(llama_model_n_layer(model), 2);
    llama_model_free(model);
  }
}

}  // namespace
}  // namespace varve::light
