// llama.cpp as a runtime plugin: the peer that benchmarks and parity checks run side by side with.
// One llama_context per context.
//
// What it cannot do it says: KV memory is one tier, eviction has no confirmation (llama.cpp gives
// none), budgets are not kept.
#include <llama.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "mri/sdk/runtime.hpp"
#include "mri/sdk/sizes.hpp"

namespace varve::llama_cpp {

constexpr mri_param_desc kParams[] = {
    mri::param_string("model_path", "", nullptr, "GGUF file"),
    mri::param_int("threads", 0, 0, 1024, "threads of ggml; 0: all cores"),
    mri::param_int("max_tokens", 8192, 1, 4194304,
                   "longest context, tokens; its KV memory is taken at once"),
    mri::param_int("ubatch_tokens", 512, 1, 65536,
                   "tokens of one prefill step (llama.cpp's n_ubatch)"),
    mri::param_string("kv_type", "f16", "f16|bf16|f32|q8_0", "format of keys and values"),
    mri::param_bool("flash_attention", true, "fused attention; needed for quantised values"),
};

struct FreeModel {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct FreeContext {
  void operator()(llama_context* context) const { llama_free(context); }
};
struct FreeBatch {
  void operator()(llama_batch* batch) const {
    llama_batch_free(*batch);
    delete batch;
  }
};

ggml_type kv_type_of(const std::string& name) {
  if (name == "q8_0") return GGML_TYPE_Q8_0;
  if (name == "f32") return GGML_TYPE_F32;
  return name == "bf16" ? GGML_TYPE_BF16 : GGML_TYPE_F16;
}

struct Context {
  std::unique_ptr<llama_context, FreeContext> llama;
  std::mutex mutex;  // llama_context is one thread at a time
  uint64_t n_tokens = 0;
  uint64_t epoch = 1;
  bool summary_is_legal = false;
};

class LlamaCpp {
 public:
  LlamaCpp(mri::Host host, const mri::Params& params)
      : host_(host), max_tokens_(params.get<uint32_t>("max_tokens")) {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    const auto path = params.get<std::string>("model_path");
    model_.reset(llama_model_load_from_file(path.c_str(), llama_model_default_params()));
    if (model_ == nullptr) throw mri::Error(MRI_E_ARG, "llama.cpp cannot load '" + path + "'");
    n_vocab_ = static_cast<uint32_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_.get())));
    const auto threads = params.get<int32_t>("threads");
    defaults_ = llama_context_default_params();
    defaults_.n_threads =
        threads != 0 ? threads : static_cast<int32_t>(std::thread::hardware_concurrency());
    defaults_.n_threads_batch = defaults_.n_threads;
    defaults_.n_ubatch = params.get<uint32_t>("ubatch_tokens");
    defaults_.n_batch = defaults_.n_ubatch;
    defaults_.type_k = defaults_.type_v = kv_type_of(params.get<std::string>("kv_type"));
    defaults_.flash_attn_type = params.get<bool>("flash_attention")
                                    ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                                    : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  }

  static void caps(mri_caps& caps) { caps.thread_model = 2; }

  void init_context(const mri_init_req& req, mri_init_rsp& rsp) {
    const uint64_t limit =
        req.max_tokens != 0 ? std::min<uint64_t>(req.max_tokens, max_tokens_) : max_tokens_;
    if (req.n_tokens > limit) {
      throw mri::Error(MRI_E_ARG, "the prompt has " + std::to_string(req.n_tokens) +
                                      " tokens, the limit is " + std::to_string(limit));
    }
    llama_context_params params = defaults_;
    params.n_ctx = static_cast<uint32_t>(limit);
    auto context = std::make_shared<Context>();
    context->llama.reset(llama_init_from_model(model_.get(), params));
    if (context->llama == nullptr)
      throw mri::Error(MRI_E_NOMEM,
                       "llama.cpp cannot make a context of " + std::to_string(limit) + " tokens");
    for (uint64_t done = 0; done < req.n_tokens;) {
      const uint64_t n = std::min<uint64_t>(defaults_.n_batch, req.n_tokens - done);
      const bool last = done + n == req.n_tokens;
      decode(*context, req.tokens + done, n, last ? req.logits : nullptr, false, req.cancel);
      done += n;
      ++rsp.n_chunks;
      if (req.progress != nullptr) req.progress(req.progress_user, done, req.n_tokens);
    }
    context->summary_is_legal = true;
    rsp.usage = usage(*context);
    const std::lock_guard lock(mutex_);
    rsp.ctx = next_ctx_++;
    contexts_[rsp.ctx] = std::move(context);
  }

  void forward_step(const mri_step_req& req, mri_step_rsp& rsp) {
    for (uint64_t i = 0; i < req.n_seqs; ++i) {
      mri_step_seq& seq = req.seqs[i];
      seq.status = mri::guard(nullptr, [&] {
        const std::shared_ptr<Context> context = find(seq.ctx);
        const std::lock_guard lock(context->mutex);
        context->summary_is_legal = false;
        seq.position = context->n_tokens;
        for (uint64_t done = 0; done < seq.n_tokens;) {
          const uint64_t n = std::min<uint64_t>(defaults_.n_batch, seq.n_tokens - done);
          float* logits = seq.logits == nullptr      ? nullptr
                          : seq.all_logits != 0      ? seq.logits + done * n_vocab_
                          : done + n == seq.n_tokens ? seq.logits
                                                     : nullptr;
          decode(*context, seq.tokens + done, n, logits, seq.all_logits != 0, req.cancel);
          done += n;
        }
        rsp.n_tokens += seq.n_tokens;
        const mri_kv_usage part = usage(*context);
        rsp.usage.hot_bytes += part.hot_bytes;
        rsp.usage.bf16_bytes += part.bf16_bytes;
        rsp.usage.hot_tokens += part.hot_tokens;
      });
    }
  }

  mri_status get_kv_summary(uint64_t ctx, const mri_summary_req& req, mri_summary_rsp& rsp) {
    const std::shared_ptr<Context> context = find(ctx);
    const std::lock_guard lock(context->mutex);
    if (!context->summary_is_legal) {
      throw mri::Error(
          MRI_E_STATE,
          "get_kv_summary is legal after init_context or evict_kv, before the next forward_step");
    }
    if (req.what != MRI_SUMMARY_BLOCKS)
      throw mri::Error(MRI_E_UNSUPPORTED, "summary kind " + std::to_string(req.what));
    mri::Writer<mri_kv_block_info> out(req.out, req.capacity, &rsp.n_out);
    rsp.usage = usage(*context);
    if (context->n_tokens > 0)
      out.push({1, 0, static_cast<uint32_t>(context->n_tokens), 0, rsp.usage.hot_bytes});
    rsp.kv_epoch = context->epoch;
    return out.status();
  }

  void evict_kv(uint64_t ctx, const mri_evict_req& req, mri_evict_rsp& rsp) {
    const std::shared_ptr<Context> context = find(ctx);
    const std::lock_guard lock(context->mutex);
    for (uint64_t i = 0; i < req.n_ranges; ++i) {
      const auto first = static_cast<llama_pos>(std::min(req.ranges[i].first, context->n_tokens));
      const auto end = static_cast<llama_pos>(
          std::min(context->n_tokens,
                   req.ranges[i].first + std::min(req.ranges[i].count, context->n_tokens)));
      if (first < end &&
          llama_memory_seq_rm(llama_get_memory(context->llama.get()), 0, first, end)) {
        rsp.n_evicted += static_cast<uint64_t>(end - first);
      }
    }
    ++context->epoch;
    context->summary_is_legal = true;
    rsp.confirm_state = MRI_CONFIRM_UNKNOWN;
  }

  void release_context(uint64_t ctx) {
    const std::lock_guard lock(mutex_);
    contexts_.erase(ctx);
  }

 private:
  std::shared_ptr<Context> find(uint64_t ctx) {
    const std::lock_guard lock(mutex_);
    const auto at = contexts_.find(ctx);
    if (at == contexts_.end())
      throw mri::Error(MRI_E_NOT_FOUND, "no context " + std::to_string(ctx));
    return at->second;
  }

  // Logits: null, the last token's, or those of all n.
  void decode(Context& context, const int32_t* tokens, uint64_t n, float* logits, bool all,
              const uint32_t* cancel) {
    if (cancel != nullptr && __atomic_load_n(cancel, __ATOMIC_RELAXED) != 0)
      throw mri::Error(MRI_E_CANCELLED, "cancelled");
    const auto count = static_cast<int32_t>(n);
    const std::unique_ptr<llama_batch, FreeBatch> batch(
        new llama_batch(llama_batch_init(count, 0, 1)));
    batch->n_tokens = count;
    for (int32_t i = 0; i < count; ++i) {
      batch->token[i] = tokens[i];
      batch->pos[i] = static_cast<llama_pos>(context.n_tokens) + i;
      batch->n_seq_id[i] = 1;
      batch->seq_id[i][0] = 0;
      batch->logits[i] = logits != nullptr && (all || i == count - 1) ? 1 : 0;
    }
    const int32_t failed = llama_decode(context.llama.get(), *batch);
    if (failed != 0) {
      throw mri::Error(failed == 1 ? MRI_E_NOMEM : MRI_E_INTERNAL,
                       "llama_decode returned " + std::to_string(failed) + " at token " +
                           std::to_string(context.n_tokens));
    }
    llama_synchronize(context.llama.get());
    context.n_tokens += n;
    for (int32_t i = 0; i < count && logits != nullptr; ++i) {
      if (batch->logits[i] == 0) continue;
      float* out = all ? logits + static_cast<size_t>(i) * n_vocab_ : logits;
      std::copy_n(llama_get_logits_ith(context.llama.get(), i), n_vocab_, out);
    }
  }

  mri_kv_usage usage(const Context& context) const {
    const uint64_t values =
        static_cast<uint64_t>(llama_model_n_layer(model_.get())) *
        llama_model_n_head_kv(model_.get()) *
        static_cast<uint64_t>(llama_model_n_embd(model_.get()) / llama_model_n_head(model_.get())) *
        2;
    const uint64_t row = values * ggml_type_size(defaults_.type_k) /
                         static_cast<uint64_t>(ggml_blck_size(defaults_.type_k));
    mri_kv_usage usage{};
    usage.hot_tokens = context.n_tokens;
    usage.hot_bytes = row * context.n_tokens;
    usage.bf16_bytes = values * 2 * context.n_tokens;
    return usage;
  }

  mri::Host host_;
  const uint32_t max_tokens_;
  uint32_t n_vocab_ = 0;
  std::unique_ptr<llama_model, FreeModel> model_;
  llama_context_params defaults_{};
  std::mutex mutex_;
  uint64_t next_ctx_ = 1;
  std::map<uint64_t, std::shared_ptr<Context>> contexts_;
};

}  // namespace varve::llama_cpp

MRI_PLUGIN(runtime, "dev.varve.runtime.llama_cpp", "1.0.0", varve::llama_cpp::kParams,
           varve::llama_cpp::LlamaCpp);
