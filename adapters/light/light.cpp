// The LightEngine as a runtime plugin: parameters in, mri.runtime/1 and what goes with it out.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "adapters/light/engine.h"
#include "adapters/light/kernel_table.h"
#include "adapters/light/model/model_error.h"
#include "adapters/light/model/shared_model.h"
#include "adapters/light/model/tokenizer.h"
#include "adapters/sampling/sampling.h"
#include "kernels/cpu_target.h"
#include "mri/sdk/runtime.hpp"

namespace varve::light {

constexpr mri_param_desc kParams[] = {
    mri::param_string("model_path", "", nullptr, "GGUF file or HuggingFace folder"),
    mri::param_string("tokenizer_path", "", nullptr,
                      "GGUF file whose vocabulary is used instead of the model's own"),
    mri::param_string("compute", "bf16", "bf16|f32",
                      "number format of matrix products; f32 takes twice the time"),
    mri::param_string("hot_format", "auto", "auto|bf16|f32",
                      "format of the hot tier; auto follows compute"),
    mri::param_int("max_tokens", 131072, 32, 4194304,
                   "longest context, tokens; costs 8 bytes of tables a token. Never more than a "
                   "model's sliding window"),
    mri::param_int("prefill_chunk_tokens", 4096, 32, 65536,
                   "tokens of one prefill step; larger is faster, 14 KiB of buffers a token for "
                   "the default model"),
    mri::param_int("kv_budget_mb", 0, 0, 1 << 24, "KV memory of all contexts, MiB; 0: no limit"),
    mri::param_string("backing", "ram", "none|ram|file",
                      "where cold blocks stay readable; none keeps only summaries"),
    mri::param_string("backing_dir", "/tmp", nullptr, "directory of the backing file"),
    mri::param_int("backing_limit_mb", 0, 0, 1 << 24, "most of the backing, MiB; 0: no limit"),
    mri::param_int("prefix_cache_mb", 1024, 0, 1 << 24,
                   "KV memory of texts that are kept for reuse after their requests, MiB, pinned "
                   "ones included; they go first when kv_budget_mb is reached; 0: no other limit"),
    mri::param_int("mass_tokens", 0, 0, 1 << 30,
                   "tells kv_tier how much attention each block received, as a mean over the text "
                   "in which a token counts half after so many more; 0: not measured, which saves "
                   "its time"),
    mri::param_bool("resident_weights", false,
                    "keep the weights unpacked as well, for a server: steps of 25 to 512 tokens "
                    "are up to 2.5 times as fast; 2 bytes a parameter, once per process"),
    mri::param_bool("warm_up", true,
                    "touch all buffers at start: the first request is as fast as the second"),
};

class Light {
 public:
  Light(mri::Host host, const mri::Params& params) : host_(host) {
    kernels::apply_cpu_target_env();
    const auto path = params.get<std::string>("model_path");
    if (path.empty())
      throw mri::Error(MRI_E_ARG,
                       "model_path is empty; set model.path in the profile or VARVE_MODEL");
    try {
      tokenizer_ = std::make_unique<Tokenizer>(path, params.get<std::string>("tokenizer_path"));
      LoadOptions load;
      load.threads = host_.concurrency();
      engine_ = std::make_unique<Engine>(share_model(path, load), engine_options(params), host_);
    } catch (const ModelError& e) {
      throw mri::Error(MRI_E_ARG, e.what());
    }
    samplers_ =
        std::make_unique<sampling::Samplers>(tokenizer_->vocab(), engine_->model().config.vocab);
    const auto end = path.find_last_not_of('/') + 1;  // a folder may be named with a slash
    name_ = path.substr(0, end).substr(path.find_last_of('/', end - 1) + 1);
  }

  static void caps(mri_caps& caps) { caps.thread_model = 3; }
  static const mri_kernels_v1* kernels() { return kernel_table(); }

  void init_context(const mri_init_req& req, mri_init_rsp& rsp) { engine_->init_context(req, rsp); }
  void forward_step(const mri_step_req& req, mri_step_rsp& rsp, mri_error* err) {
    engine_->forward_step(req, rsp, err);
  }
  mri_status get_kv_summary(uint64_t ctx, const mri_summary_req& req, mri_summary_rsp& rsp) {
    return engine_->get_kv_summary(ctx, req, rsp);
  }
  void evict_kv(uint64_t ctx, const mri_evict_req& req, mri_evict_rsp& rsp) {
    engine_->evict_kv(ctx, req, rsp);
  }
  void release_context(uint64_t ctx) { engine_->release_context(ctx); }

  uint64_t create_sampler(const mri_sampler_req& req) { return samplers_->create(req); }
  int32_t sample(uint64_t sampler, const float* logits) {
    return samplers_->sample(sampler, logits);
  }
  void accept(uint64_t sampler, std::span<const int32_t> tokens) {
    samplers_->accept(sampler, tokens);
  }
  void release_sampler(uint64_t sampler) { samplers_->release(sampler); }

  void enable_timings(uint64_t ctx, bool on) { engine_->enable_timings(ctx, on); }
  void read_timings(uint64_t ctx, mri_timings& timings) { engine_->read_timings(ctx, timings); }

  void reuse(const mri_reuse_req& req, mri_reuse_rsp& rsp) { engine_->reuse(req, rsp); }
  void keep(uint64_t ctx, std::span<const mri_prefix_key> keys, uint32_t flags) {
    engine_->keep(ctx, keys, flags);
  }
  void forget(const mri_prefix_key& last_key) { engine_->forget(last_key); }
  uint64_t shrink(uint64_t ctx, uint64_t wanted_bytes) {
    return engine_->shrink(ctx, wanted_bytes);
  }
  void memory_usage(mri_memory_usage& usage) { engine_->memory_usage(usage); }

  void model_info(mri_model_info& info) const {
    const Model& model = engine_->model();
    const ModelConfig& config = model.config;
    info.vocab_size = config.vocab;
    info.trained_tokens = config.trained_tokens;
    info.max_tokens = engine_->max_tokens();
    info.parameters = parameters(model);
    info.weight_bytes = model.weight_bytes();
    info.kv_bytes_per_token_bf16 = uint64_t{config.n_layers} * config.kv_rows() * 4;
    info.n_layers = config.n_layers;
    info.n_heads = config.n_heads;
    info.n_kv_heads = config.n_kv_heads;
    info.head_dim = config.head_dim;
    info.n_embd = config.n_embd;
    info.n_ff = config.n_ff;
    std::snprintf(info.name, sizeof(info.name), "%s", name_.c_str());
    std::snprintf(info.architecture, sizeof(info.architecture), "%s",
                  std::string(name_of(config.architecture)).c_str());
  }
  std::vector<int32_t> tokenize(std::string_view text, bool add_special, bool parse_special) const {
    return tokenizer_->tokenize(text, add_special, parse_special);
  }
  std::string detokenize(std::span<const int32_t> tokens, bool special) const {
    std::string bytes;
    for (int32_t token : tokens) bytes += tokenizer_->piece(token, special);
    return bytes;
  }
  std::string chat(std::span<const mri_chat_message> messages, bool add_generation_prompt) const {
    std::vector<ChatMessage> list;
    for (const mri_chat_message& message : messages)
      list.push_back({message.role, message.content});
    return tokenizer_->apply_chat_template(list, add_generation_prompt);
  }
  bool is_end(int32_t token) const { return tokenizer_->is_end(token); }

 private:
  static EngineOptions engine_options(const mri::Params& params) {
    EngineOptions options;
    const bool f32 = params.get<std::string>("compute") == "f32";
    const auto hot = params.get<std::string>("hot_format");
    options.compute = f32 ? kernels::Compute::kF32 : kernels::Compute::kBf16;
    options.kv.hot_format =
        hot == "f32" || (hot == "auto" && f32) ? kernels::KvFormat::kF32 : kernels::KvFormat::kBf16;
    options.max_tokens = params.get<uint32_t>("max_tokens");
    options.chunk_tokens = params.get<uint32_t>("prefill_chunk_tokens");
    options.kv.budget_bytes = params.get<uint64_t>("kv_budget_mb") << 20;
    const auto backing = params.get<std::string>("backing");
    options.kv.backing = backing == "none"  ? BackingKind::kNone
                         : backing == "ram" ? BackingKind::kRam
                                            : BackingKind::kFile;
    options.kv.backing_directory = params.get<std::string>("backing_dir");
    options.kv.backing_limit_bytes = params.get<uint64_t>("backing_limit_mb") << 20;
    options.kv.mass_tokens = params.get<uint32_t>("mass_tokens");
    options.kv.prefix_limit_bytes = params.get<uint64_t>("prefix_cache_mb") << 20;
    options.resident_weights = params.get<bool>("resident_weights");
    options.warm_up = params.get<bool>("warm_up");
    return options;
  }

  static uint64_t parameters(const Model& model) {
    const ModelConfig& config = model.config;
    const uint64_t layer = uint64_t{config.n_embd} *
                           (2 * config.q_rows() + 2 * config.kv_rows() + 3 * config.n_ff + 2);
    const uint64_t tables =
        (config.tied_embeddings ? 1 : 2) * uint64_t{config.vocab} * config.n_embd;
    return config.n_layers * layer + tables + config.n_embd;
  }

  mri::Host host_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<sampling::Samplers> samplers_;
  std::string name_;
};

}  // namespace varve::light

MRI_PLUGIN(runtime, "dev.varve.runtime.light", "1.0.0", varve::light::kParams, varve::light::Light);
