// llama.cpp as a runtime plugin: the peer that benchmarks and parity checks run side by side with.
// One llama_context per context.
//
// What it cannot do it says: KV memory is one tier, eviction has no confirmation (llama.cpp gives
// none), budgets are not kept.
#include <llama.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "adapters/sampling/sampling.h"
#include "mri/kv_view.h"
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
  uint64_t max_tokens = 0;
  uint64_t n_tokens = 0;
  std::vector<bool> live;  // [n_tokens] not evicted
  uint64_t epoch = 1;
  bool summary_is_legal = false;
};

class LlamaCpp {
 public:
  LlamaCpp(mri::Host, const mri::Params& params) : max_tokens_(params.get<uint32_t>("max_tokens")) {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    const auto path = params.get<std::string>("model_path");
    model_.reset(llama_model_load_from_file(path.c_str(), llama_model_default_params()));
    if (model_ == nullptr) {
      throw mri::Error(MRI_E_ARG, "llama.cpp cannot load '" + path +
                                      "'; expected a readable GGUF file: see `varve model info`");
    }
    const llama_vocab* vocab = llama_model_get_vocab(model_.get());
    n_vocab_ = static_cast<uint32_t>(llama_vocab_n_tokens(vocab));
    samplers_ = std::make_unique<sampling::Samplers>(vocab, n_vocab_);
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
                                      " tokens, the limit is " + std::to_string(limit) +
                                      " (runtime.max_tokens)");
    }
    check_tokens(req.tokens, req.n_tokens);
    if (req.n_tokens == 0 && req.logits != nullptr) {
      throw mri::Error(MRI_E_ARG,
                       "logits are asked for after an empty prompt; give at least one token");
    }
    llama_context_params params = defaults_;
    params.n_ctx = static_cast<uint32_t>(limit);
    auto context = std::make_shared<Context>();
    context->llama.reset(llama_init_from_model(model_.get(), params));
    if (context->llama == nullptr)
      throw mri::Error(MRI_E_NOMEM, "llama.cpp cannot make a context of " + std::to_string(limit) +
                                        " tokens; lower runtime.max_tokens");
    context->max_tokens = limit;
    rsp.n_chunks = rsp.n_chunks_retried = 0;
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

  mri_status forward_step(const mri_step_req& req, mri_step_rsp& rsp, mri_error* err) {
    rsp.n_tokens = 0;
    rsp.usage = {};
    for (uint64_t i = 0; i < req.n_seqs; ++i) {
      mri_step_seq& seq = req.seqs[i];
      seq.status = mri::guard(err, [&] {
        const Held context = hold(seq.ctx);
        context->summary_is_legal = false;
        step(*context, seq, req.cancel);
        rsp.n_tokens += seq.n_tokens;
        const mri_kv_usage part = usage(*context);
        rsp.usage.hot_bytes += part.hot_bytes;
        rsp.usage.bf16_bytes += part.bf16_bytes;
        rsp.usage.hot_tokens += part.hot_tokens;
      });
    }
    return req.n_seqs == 1 ? req.seqs[0].status : MRI_OK;
  }

  mri_status get_kv_summary(uint64_t ctx, const mri_summary_req& req, mri_summary_rsp& rsp) {
    const Held context = hold(ctx);
    if (!context->summary_is_legal) {
      throw mri::Error(
          MRI_E_STATE,
          "get_kv_summary is legal after init_context or evict_kv, before the next forward_step");
    }
    if (req.what != MRI_SUMMARY_BLOCKS)
      throw mri::Error(MRI_E_UNSUPPORTED, "summary kind " + std::to_string(req.what));
    mri::Writer<mri_kv_block_info> out(req.out, req.capacity, &rsp.n_out);
    rsp.usage = usage(*context);
    if (rsp.usage.hot_tokens > 0)
      out.push({1, 0, static_cast<uint32_t>(rsp.usage.hot_tokens), 0, rsp.usage.hot_bytes});
    rsp.kv_epoch = context->epoch;
    return out.status();
  }

  void evict_kv(uint64_t ctx, const mri_evict_req& req, mri_evict_rsp& rsp) {
    if (req.n_ranges > 0 && req.ranges == nullptr)
      throw mri::Error(MRI_E_ARG, "ranges: null pointer");
    if (req.granularity > MRI_EVICT_SEGMENT) {
      throw mri::Error(MRI_E_ARG,
                       "granularity " + std::to_string(req.granularity) + ", known are 0..3");
    }
    const Held context = hold(ctx);
    rsp.n_evicted = rsp.bytes_freed = 0;
    rsp.n_refused = 0;
    for (uint64_t i = 0; i < req.n_ranges; ++i)
      evict_range(*context, req.ranges[i], req.granularity, rsp);
    ++context->epoch;
    context->summary_is_legal = true;
    rsp.confirm_state = MRI_CONFIRM_UNKNOWN;
  }

  void release_context(uint64_t ctx) {
    std::shared_ptr<Context> gone;
    {
      const std::lock_guard lock(mutex_);
      const auto at = contexts_.find(ctx);
      if (at == contexts_.end()) return;
      gone = std::move(at->second);
      contexts_.erase(at);
    }
    const std::lock_guard wait_for_calls_under_way(gone->mutex);
    gone->llama.reset();
  }

  uint64_t create_sampler(const mri_sampler_req& req) { return samplers_->create(req); }
  int32_t sample(uint64_t sampler, const float* logits) {
    return samplers_->sample(sampler, logits);
  }
  void accept(uint64_t sampler, std::span<const int32_t> tokens) {
    samplers_->accept(sampler, tokens);
  }
  void release_sampler(uint64_t sampler) { samplers_->release(sampler); }

 private:
  // A context for one call: nobody else is in it, and it is not freed.
  struct Held {
    std::shared_ptr<Context> context;
    std::unique_lock<std::mutex> lock;
    Context& operator*() const { return *context; }
    Context* operator->() const { return context.get(); }
  };

  Held hold(uint64_t ctx) {
    Held held;
    {
      const std::lock_guard lock(mutex_);
      const auto at = contexts_.find(ctx);
      if (at != contexts_.end()) held.context = at->second;
    }
    if (held.context != nullptr) held.lock = std::unique_lock(held.context->mutex);
    if (held.context == nullptr || held.context->llama == nullptr)
      throw mri::Error(MRI_E_NOT_FOUND, "no context " + std::to_string(ctx));
    return held;
  }

  void check_tokens(const int32_t* tokens, uint64_t n) const {
    if (n > 0 && tokens == nullptr) throw mri::Error(MRI_E_ARG, "tokens: null pointer");
    for (uint64_t i = 0; i < n; ++i) {
      if (tokens[i] >= 0 && static_cast<uint32_t>(tokens[i]) < n_vocab_) continue;
      throw mri::Error(MRI_E_ARG, "token " + std::to_string(i) + " is " +
                                      std::to_string(tokens[i]) + ", the vocabulary has 0.." +
                                      std::to_string(n_vocab_ - 1));
    }
  }

  // All tokens of a sequence or none.
  void step(Context& context, mri_step_seq& seq, const uint32_t* cancel) {
    if (seq.n_tokens == 0) throw mri::Error(MRI_E_ARG, "a step of no tokens; give at least one");
    check_tokens(seq.tokens, seq.n_tokens);
    if (seq.n_tokens > context.max_tokens - context.n_tokens) {
      throw mri::Error(MRI_E_ARG, "the context has " + std::to_string(context.n_tokens) +
                                      " tokens and gets " + std::to_string(seq.n_tokens) +
                                      " more; its limit is " + std::to_string(context.max_tokens));
    }
    const uint64_t before = seq.position = context.n_tokens;
    try {
      for (uint64_t done = 0; done < seq.n_tokens;) {
        const uint64_t n = std::min<uint64_t>(defaults_.n_batch, seq.n_tokens - done);
        float* logits = seq.logits == nullptr      ? nullptr
                        : seq.all_logits != 0      ? seq.logits + done * n_vocab_
                        : done + n == seq.n_tokens ? seq.logits
                                                   : nullptr;
        decode(context, seq.tokens + done, n, logits, seq.all_logits != 0, cancel);
        done += n;
      }
    } catch (...) {
      llama_memory_seq_rm(llama_get_memory(context.llama.get()), 0, static_cast<llama_pos>(before),
                          -1);
      context.n_tokens = before;
      context.live.resize(before);
      throw;
    }
  }

  // llama.cpp has no blocks, so that whole ones are a matter of rounding. It needs the last token:
  // the next position must follow one that is there.
  static void evict_range(Context& context, const mri_token_range& range, uint32_t granularity,
                          mri_evict_rsp& rsp) {
    uint64_t first = std::min(range.first, context.n_tokens);
    uint64_t end = first + std::min(range.count, context.n_tokens - first);
    if (first == end) return;
    const uint64_t unit = granularity == MRI_EVICT_SEGMENT ? MRI_SEGMENT_TOKENS
                          : granularity == MRI_EVICT_BLOCK ? MRI_BLOCK_TOKENS
                                                           : 1;
    first = first / unit * unit;
    end = std::min((end + unit - 1) / unit * unit, context.n_tokens);
    if (end == context.n_tokens) {
      --end;
      ++rsp.n_refused;
    }
    if (first == end ||
        !llama_memory_seq_rm(llama_get_memory(context.llama.get()), 0,
                             static_cast<llama_pos>(first), static_cast<llama_pos>(end))) {
      return;
    }
    for (uint64_t t = first; t < end; ++t) {
      rsp.n_evicted += context.live[t] ? 1 : 0;
      context.live[t] = false;
    }
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
    context.live.resize(context.n_tokens, true);
    for (int32_t i = 0; i < count && logits != nullptr; ++i) {
      if (batch->logits[i] == 0) continue;
      float* out = all ? logits + static_cast<size_t>(i) * n_vocab_ : logits;
      const float* from = llama_get_logits_ith(context.llama.get(), i);
      if (from == nullptr) throw mri::Error(MRI_E_INTERNAL, "llama.cpp has no logits");
      std::copy_n(from, n_vocab_, out);
    }
  }

  // Values of keys and of values are as many: head sizes that differ are not of the families here.
  uint64_t head_dim() const {
    char text[64] = {};
    if (llama_model_meta_val_str(model_.get(), "general.architecture", text, sizeof(text)) > 0) {
      const std::string key = std::string(text) + ".attention.key_length";
      if (llama_model_meta_val_str(model_.get(), key.c_str(), text, sizeof(text)) > 0)
        return std::strtoull(text, nullptr, 10);
    }
    return static_cast<uint64_t>(llama_model_n_embd(model_.get()) /
                                 llama_model_n_head(model_.get()));
  }

  mri_kv_usage usage(const Context& context) const {
    const uint64_t values = static_cast<uint64_t>(llama_model_n_layer(model_.get())) *
                            static_cast<uint64_t>(llama_model_n_head_kv(model_.get())) *
                            head_dim() * 2;
    const uint64_t row = values * ggml_type_size(defaults_.type_k) /
                         static_cast<uint64_t>(ggml_blck_size(defaults_.type_k));
    mri_kv_usage usage{};
    usage.hot_tokens =
        static_cast<uint64_t>(std::count(context.live.begin(), context.live.end(), true));
    usage.hot_bytes = row * usage.hot_tokens;
    usage.bf16_bytes = values * 2 * context.n_tokens;
    return usage;
  }

  const uint32_t max_tokens_;
  uint32_t n_vocab_ = 0;
  std::unique_ptr<llama_model, FreeModel> model_;
  std::unique_ptr<sampling::Samplers> samplers_;
  llama_context_params defaults_{};
  std::mutex mutex_;
  uint64_t next_ctx_ = 1;
  std::map<uint64_t, std::shared_ptr<Context>> contexts_;
};

}  // namespace varve::llama_cpp

MRI_PLUGIN(runtime, "dev.varve.runtime.llama_cpp", "1.0.0", varve::llama_cpp::kParams,
           varve::llama_cpp::LlamaCpp);
