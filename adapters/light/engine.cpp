#include "adapters/light/engine.h"

#include <algorithm>
#include <string>
#include <utility>

#include "adapters/light/engine_context.h"
#include "kernels/panel_gemm.h"
#include "mri/sdk/error.hpp"
#include "mri/sdk/sizes.hpp"

namespace varve::light {
namespace {

// Under memory pressure a prefill chunk is halved until it fits, but not below this.
constexpr uint32_t kChunkTokensMin = 256;
// Buffers grow with the chunk; a caller's wish ends here, as the parameter does.
constexpr uint32_t kChunkTokensMax = 65536;

// Within the window a model with sliding-window attention computes the same as one without; past it
// this engine would not. A chunk larger than the longest context would only cost memory.
EngineOptions within_limits(const ModelConfig& config, EngineOptions options) {
  if (config.sliding_window != 0)
    options.max_tokens = std::min(options.max_tokens, config.sliding_window);
  options.chunk_tokens = std::min(options.chunk_tokens, options.max_tokens);
  return options;
}

KvStoreOptions kv_options(const Model& model, KvStoreOptions kv) {
  kv.n_layers = model.config.n_layers;
  kv.n_kv_heads = model.config.n_kv_heads;
  kv.head_dim = model.config.head_dim;
  return kv;
}

}  // namespace

Engine::Engine(std::shared_ptr<const Model> model, const EngineOptions& options,
               const mri::Host& host)
    : model_(std::move(model)),
      options_(within_limits(model_->config, options)),
      host_(host),
      rope_(model_->config, options_.max_tokens) {
  options_.kv = kv_options(*model_, options.kv);
  store_ = std::make_unique<KvStore>(options_.kv, host_, &rope_.rope());
  forward_ = std::make_unique<Forward>(*model_, rope_, *store_, options_.compute, resident());
  if (!options_.warm_up) return;
  // As many blocks of one prefill step as the pool keeps: hot bodies and indexes alike.
  const uint64_t blocks = std::min<uint64_t>(
      options_.chunk_tokens / MRI_BLOCK_TOKENS,
      options_.kv.spare_bytes_max / (store_->hot_block_bytes() + store_->index_block_bytes()));
  store_->pool().warm_up(store_->hot_block_bytes(), blocks);
  store_->pool().warm_up(store_->index_block_bytes(), blocks);
  for (const uint32_t rows : {1u, kPanelRowsMax, options_.chunk_tokens}) forward_->warm_up(rows);
}

Engine::~Engine() = default;

// Null where they are not asked for or would not be faster.
std::shared_ptr<const ResidentWeights> Engine::resident() const {
  if (!options_.resident_weights) return nullptr;
  if (options_.compute == kernels::Compute::kBf16 && kernels::cpu::has_panel_gemm())
    return share_resident(model_, host_);
  host_.log(MRI_LOG_WARNING,
            "resident_weights has no effect: it needs compute bf16 and AVX512-BF16");
  return nullptr;
}

void Engine::check_tokens(const int32_t* tokens, uint64_t n) const {
  if (n > 0 && tokens == nullptr)
    throw mri::Error(MRI_E_ARG, "tokens: null pointer for " + std::to_string(n) + " tokens");
  for (uint64_t i = 0; i < n; ++i) {
    if (tokens[i] >= 0 && static_cast<uint32_t>(tokens[i]) < model_->config.vocab) continue;
    throw mri::Error(MRI_E_ARG, "token " + std::to_string(i) + " is " + std::to_string(tokens[i]) +
                                    ", the vocabulary has 0.." +
                                    std::to_string(model_->config.vocab - 1));
  }
}

uint64_t Engine::context_limit(uint64_t wanted) const {
  return wanted != 0 ? std::min<uint64_t>(wanted, options_.max_tokens) : options_.max_tokens;
}

void Engine::init_context(const mri_init_req& req, mri_init_rsp& rsp) {
  check_tokens(req.tokens, req.n_tokens);
  const uint64_t limit = context_limit(req.max_tokens);
  if (req.n_tokens > limit) {
    throw mri::Error(MRI_E_ARG,
                     "the prompt has " + std::to_string(req.n_tokens) + " tokens, the limit is " +
                         std::to_string(limit) +
                         (limit == options_.max_tokens ? " (runtime.max_tokens)"
                                                       : " (max_tokens of this request)"));
  }
  if (req.n_tokens == 0 && req.logits != nullptr) {
    throw mri::Error(MRI_E_ARG,
                     "logits are asked for after an empty prompt; give at least one token");
  }
  if (req.n_pinned > 0 && req.pinned == nullptr)
    throw mri::Error(MRI_E_ARG, "pinned: null pointer");
  Lease lease(*this, std::make_unique<Context>(*store_, req.budget_bytes,
                                               std::span(req.pinned, req.n_pinned), limit));
  try {
    prefill(*lease, req, rsp);
  } catch (...) {
    lease.end(true);
    throw;
  }
  (*lease).summary_is_legal = true;
  rsp.ctx = lease.ctx();
  rsp.usage = (*lease).cache.usage();
}

void Engine::prefill(Context& context, const mri_init_req& req, mri_init_rsp& rsp) {
  uint32_t chunk =
      req.chunk_tokens != 0 ? std::min(req.chunk_tokens, kChunkTokensMax) : options_.chunk_tokens;
  rsp.n_chunks = rsp.n_chunks_retried = 0;
  for (uint64_t done = 0; done < req.n_tokens;) {
    const auto n = static_cast<uint32_t>(std::min<uint64_t>(chunk, req.n_tokens - done));
    const bool last = done + n == req.n_tokens;
    if (!prefill_chunk(context, req.tokens + done, n, last, req, rsp.n_chunks_retried)) {
      ++rsp.n_chunks_retried;
      chunk = std::max(n / 2, kChunkTokensMin);
      continue;
    }
    ++rsp.n_chunks;
    done += n;
    if (req.progress != nullptr) req.progress(req.progress_user, done, req.n_tokens);
  }
}

// False when the chunk shall be tried again, smaller: there was no room for it at once. A chunk
// that failed in a plugin or on a device is tried once more here, alone; what came before it stays.
bool Engine::prefill_chunk(Context& context, const int32_t* tokens, uint32_t n, bool last,
                           const mri_init_req& req, uint64_t& retried) {
  KvCache& cache = context.cache;
  const uint32_t before = cache.n_tokens();
  for (int attempt = 0;; ++attempt) {
    mri_error err = empty_error();
    const mri_status status = mri::guard(&err, [&] {
      cache.append(n);
      const ForwardSeq seq{
          &cache, tokens, n, last ? MRI_ATTN_SEQ_PROMPT_END : 0u, last ? req.logits : nullptr,
          false};
      forward_->run(std::span(&seq, 1), req.cancel);
      cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
    });
    if (status == MRI_OK) return true;
    cache.truncate(before);
    if (status == MRI_E_NOMEM && n > kChunkTokensMin) return false;
    const bool hopeless = status == MRI_E_CANCELLED || status == MRI_E_ARG || status == MRI_E_NOMEM;
    if (hopeless || attempt > 0) throw mri::Error(status, err.msg);
    ++retried;
    host_.log(MRI_LOG_WARNING, "prefill chunk at token " + std::to_string(before) +
                                   " failed, trying it again: " + err.msg);
  }
}

mri_status Engine::get_kv_summary(uint64_t ctx, const mri_summary_req& req, mri_summary_rsp& rsp) {
  Lease lease(*this, ctx);
  Context& context = *lease;
  if (!context.summary_is_legal) {
    throw mri::Error(
        MRI_E_STATE,
        "get_kv_summary is legal after init_context or evict_kv, before the next forward_step");
  }
  if (req.what != MRI_SUMMARY_BLOCKS)
    throw mri::Error(MRI_E_UNSUPPORTED, "summary kind " + std::to_string(req.what));
  mri::Writer<mri_kv_block_info> out(req.out, req.capacity, &rsp.n_out);
  const uint64_t end = req.n_tokens == 0
                           ? UINT64_MAX
                           : req.first_token + std::min(req.n_tokens, UINT64_MAX - req.first_token);
  const auto blocks = context.cache.blocks();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const mri_kv_block& block = blocks[i];
    if (block.live_mask == 0 || block.position >= end ||
        block.position + MRI_BLOCK_TOKENS <= req.first_token)
      continue;
    out.push({block.id, block.position, static_cast<uint32_t>(__builtin_popcount(block.live_mask)),
              block.tier, context.cache.block_bytes(i)});
  }
  rsp.kv_epoch = context.cache.epoch();
  rsp.usage = context.cache.usage();
  return out.status();
}

void Engine::evict_kv(uint64_t ctx, const mri_evict_req& req, mri_evict_rsp& rsp) {
  if (req.n_ranges > 0 && req.ranges == nullptr)
    throw mri::Error(MRI_E_ARG, "ranges: null pointer");
  if (req.granularity > MRI_EVICT_SEGMENT) {
    throw mri::Error(MRI_E_ARG,
                     "granularity " + std::to_string(req.granularity) + ", known are 0..3");
  }
  Lease lease(*this, ctx);
  Context& context = *lease;
  const KvCache::Evicted evicted =
      context.cache.evict(std::span(req.ranges, req.n_ranges), req.granularity);
  context.summary_is_legal = true;
  rsp.n_evicted = evicted.n_tokens;
  rsp.bytes_freed = evicted.bytes;
  rsp.n_refused = evicted.n_refused;
  rsp.confirm_state =
      evicted.n_tokens == 0 && evicted.n_refused > 0 ? MRI_CONFIRM_REFUSED : MRI_CONFIRM_DONE;
  rsp.confirm_epoch = context.cache.epoch();
}

void Engine::release_context(uint64_t ctx) { Lease(*this, ctx).end(true); }

}  // namespace varve::light
