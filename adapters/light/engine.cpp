#include "adapters/light/engine.h"

#include <algorithm>
#include <string>
#include <utility>

#include "mri/sdk/error.hpp"
#include "mri/sdk/sizes.hpp"

namespace varve::light {
namespace {

// Under memory pressure a prefill chunk is halved until it fits, but not below this.
constexpr uint32_t kChunkTokensMin = 256;
// Buffers grow with the chunk; a caller's wish ends here, as the parameter does.
constexpr uint32_t kChunkTokensMax = 65536;

void add_usage(mri_kv_usage& sum, const mri_kv_usage& part) {
  sum.hot_bytes += part.hot_bytes;
  sum.warm_bytes += part.warm_bytes;
  sum.cold_bytes += part.cold_bytes;
  sum.backing_bytes += part.backing_bytes;
  sum.bf16_bytes += part.bf16_bytes;
  sum.hot_tokens += part.hot_tokens;
  sum.warm_tokens += part.warm_tokens;
  sum.cold_tokens += part.cold_tokens;
}

// Within the window a model with sliding-window attention computes the same as one without; past it
// this engine would not. A chunk larger than the longest context would only cost memory.
EngineOptions within_limits(const ModelConfig& config, EngineOptions options) {
  if (config.sliding_window != 0)
    options.max_tokens = std::min(options.max_tokens, config.sliding_window);
  options.chunk_tokens = std::min(options.chunk_tokens, options.max_tokens);
  return options;
}

mri_error empty_error() {
  mri_error err{};
  err.struct_size = sizeof(err);
  return err;
}

KvStoreOptions kv_options(const Model& model, KvStoreOptions kv) {
  kv.n_layers = model.config.n_layers;
  kv.n_kv_heads = model.config.n_kv_heads;
  kv.head_dim = model.config.head_dim;
  return kv;
}

}  // namespace

struct Engine::Context {
  Context(const KvStore& store, uint64_t budget_bytes, std::span<const mri_token_range> pinned,
          uint64_t max)
      : cache(store, budget_bytes, pinned), max_tokens(max) {}

  KvCache cache;
  const uint64_t max_tokens;
  // Whose turn it is, and the next number to draw; first come, first served, so that an eviction
  // is not starved by steps. Guarded by Engine::mutex_.
  uint64_t turn = 0, next_turn = 0;
  bool summary_is_legal = false;  // guarded by the lease
};

// Sole use of one context from the constructor to the destructor. Empty when there is no such
// context.
class Engine::Lease {
 public:
  Lease(Engine& engine, uint64_t ctx) : engine_(engine), ctx_(ctx) {
    engine_.mutex_.lock();
    Context* context = find();
    const uint64_t mine = context != nullptr ? context->next_turn++ : 0;
    while (context != nullptr && context->turn != mine) {
      engine_.returned_.wait(engine_.mutex_);
      context = find();
    }
    context_ = context;
    engine_.mutex_.unlock();
  }
  // A new context, which nobody else can have before this lease ends.
  Lease(Engine& engine, std::unique_ptr<Context> context)
      : engine_(engine), context_(context.get()) {
    MutexLock lock(engine.mutex_);
    context->next_turn = 1;
    ctx_ = engine.next_ctx_++;
    engine.contexts_.emplace(ctx_, std::move(context));
  }
  Lease(Lease&& other) noexcept
      : engine_(other.engine_), ctx_(other.ctx_), context_(other.context_) {
    other.context_ = nullptr;
  }
  Lease& operator=(Lease&&) = delete;
  ~Lease() { end(false); }

  Context* get() const { return context_; }
  uint64_t ctx() const { return ctx_; }

  Context& operator*() const {
    if (context_ == nullptr)
      throw mri::Error(MRI_E_NOT_FOUND, "no context " + std::to_string(ctx_));
    return *context_;
  }

  // Gives the context back, or away for good.
  void end(bool remove) {
    if (context_ == nullptr) return;
    std::unique_ptr<Context> gone;
    {
      MutexLock lock(engine_.mutex_);
      ++context_->turn;
      if (remove) {
        const auto at = engine_.contexts_.find(ctx_);
        gone = std::move(at->second);
        engine_.contexts_.erase(at);
      }
    }
    context_ = nullptr;
    engine_.returned_.notify_all();
  }

 private:
  Context* find() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine_.mutex_) {
    const auto at = engine_.contexts_.find(ctx_);
    return at == engine_.contexts_.end() ? nullptr : at->second.get();
  }

  Engine& engine_;
  uint64_t ctx_ = 0;
  Context* context_ = nullptr;
};

Engine::Engine(std::shared_ptr<const Model> model, const EngineOptions& options,
               const mri::Host& host)
    : model_(std::move(model)),
      options_(within_limits(model_->config, options)),
      host_(host),
      rope_(model_->config, options_.max_tokens) {
  options_.kv = kv_options(*model_, options.kv);
  store_ = std::make_unique<KvStore>(options_.kv, host_, &rope_.rope());
  forward_ = std::make_unique<Forward>(*model_, rope_, *store_, options_.compute);
  if (!options_.warm_up) return;
  // As many blocks of one prefill step as the pool keeps: hot bodies and indexes alike.
  const uint64_t blocks = std::min<uint64_t>(
      options_.chunk_tokens / MRI_BLOCK_TOKENS,
      options_.kv.spare_bytes_max / (store_->hot_block_bytes() + store_->index_block_bytes()));
  store_->pool().warm_up(store_->hot_block_bytes(), blocks);
  store_->pool().warm_up(store_->index_block_bytes(), blocks);
  forward_->warm_up(1);
  forward_->warm_up(options_.chunk_tokens);
}

Engine::~Engine() = default;

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

void Engine::init_context(const mri_init_req& req, mri_init_rsp& rsp) {
  check_tokens(req.tokens, req.n_tokens);
  const uint64_t limit = req.max_tokens != 0
                             ? std::min<uint64_t>(req.max_tokens, options_.max_tokens)
                             : options_.max_tokens;
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

void Engine::forward_step(const mri_step_req& req, mri_step_rsp& rsp) {
  if (req.n_seqs > 0 && req.seqs == nullptr) throw mri::Error(MRI_E_ARG, "seqs: null pointer");
  std::vector<mri_step_seq*> order;
  for (uint64_t i = 0; i < req.n_seqs; ++i) order.push_back(&req.seqs[i]);
  // Leases are taken in rising order, so that two batches cannot wait for each other.
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->ctx < b->ctx; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i]->ctx == order[i - 1]->ctx) {
      throw mri::Error(MRI_E_ARG,
                       "context " + std::to_string(order[i]->ctx) + " is named twice in one step");
    }
  }
  std::vector<Lease> leases;
  leases.reserve(order.size());
  for (mri_step_seq* seq : order) leases.emplace_back(*this, seq->ctx);
  const std::string why = step_sequences(order, leases, req.cancel);
  // A sequence has no room for text; the call has.
  if (order.size() == 1 && order[0]->status != MRI_OK) throw mri::Error(order[0]->status, why);
  rsp.n_tokens = 0;
  rsp.usage = {};
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i]->status == MRI_OK) rsp.n_tokens += order[i]->n_tokens;
    if (leases[i].get() != nullptr) add_usage(rsp.usage, leases[i].get()->cache.usage());
  }
}

// Sequences that go through the layers together, and the text of the last failure among them.
struct Engine::Batch {
  std::vector<ForwardSeq> seqs;
  std::vector<mri_step_seq*> of;
  uint64_t rows = 0;
  std::string why;

  void fail(mri_step_seq& seq, mri_status status, const mri_error& err, const mri::Host& host) {
    seq.status = status;
    why = err.msg;
    host.log(MRI_LOG_WARNING, "context " + std::to_string(seq.ctx) + ": " + why);
  }
};

std::string Engine::step_sequences(std::span<mri_step_seq* const> seqs,
                                   const std::vector<Lease>& leases, const uint32_t* cancel) {
  Batch batch;
  for (size_t i = 0; i < seqs.size(); ++i) {
    mri_step_seq& seq = *seqs[i];
    seq.status = MRI_OK;
    if (batch.rows + seq.n_tokens > options_.chunk_tokens) run_batch(batch, cancel);
    mri_error err = empty_error();
    const mri_status status =
        mri::guard(&err, [&] { add_to_batch(seq, *leases[i], cancel, batch); });
    if (status != MRI_OK) batch.fail(seq, status, err, host_);
  }
  run_batch(batch, cancel);
  return batch.why;
}

void Engine::add_to_batch(mri_step_seq& seq, Context& context, const uint32_t* cancel,
                          Batch& batch) {
  KvCache& cache = context.cache;
  context.summary_is_legal = false;
  if (seq.n_tokens == 0) throw mri::Error(MRI_E_ARG, "a step of no tokens; give at least one");
  check_tokens(seq.tokens, seq.n_tokens);
  if (seq.n_tokens > context.max_tokens - cache.n_tokens()) {
    throw mri::Error(MRI_E_ARG, "the context has " + std::to_string(cache.n_tokens()) +
                                    " tokens and gets " + std::to_string(seq.n_tokens) +
                                    " more; its limit is " + std::to_string(context.max_tokens));
  }
  seq.position = cache.n_tokens();
  if (seq.n_tokens > options_.chunk_tokens) return step_long(seq, context, cancel);
  const auto n = static_cast<uint32_t>(seq.n_tokens);
  cache.append(n);
  batch.seqs.push_back({&cache, seq.tokens, n,
                        n == 1 ? MRI_ATTN_SEQ_DECODE : MRI_ATTN_SEQ_PROMPT_END, seq.logits,
                        seq.all_logits != 0, seq.ctx});
  batch.of.push_back(&seq);
  batch.rows += n;
}

// Computes the batch and empties it. When it fails as a whole, each sequence is tried alone: the
// fault may be of one of them.
void Engine::run_batch(Batch& batch, const uint32_t* cancel) {
  const std::vector<ForwardSeq> seqs = std::exchange(batch.seqs, {});
  const std::vector<mri_step_seq*> of = std::exchange(batch.of, {});
  batch.rows = 0;
  if (seqs.empty()) return;
  const auto undo = [](const ForwardSeq& seq) {
    seq.cache->truncate(seq.cache->n_tokens() - seq.n_tokens);
  };
  mri_error err = empty_error();
  const mri_status failed = mri::guard(&err, [&] { forward_->run(seqs, cancel); });
  if (failed != MRI_OK) std::for_each(seqs.begin(), seqs.end(), undo);
  for (size_t i = 0; i < seqs.size(); ++i) {
    const ForwardSeq& seq = seqs[i];
    mri_status status = failed;
    if (failed == MRI_OK) {
      const uint32_t n = seq.cache->n_tokens();
      const bool filled_block = n / MRI_BLOCK_TOKENS != (n - seq.n_tokens) / MRI_BLOCK_TOKENS;
      if (!filled_block) continue;
      status = mri::guard(&err, [&] { seq.cache->apply_policy(MRI_TIER_WHY_APPEND, 0); });
      if (status != MRI_OK) undo(seq);
    } else if (seqs.size() > 1 && failed != MRI_E_CANCELLED) {
      status = mri::guard(&err, [&] { seq.cache->append(seq.n_tokens); });
      if (status == MRI_OK) {
        batch.seqs = {seq};
        batch.of = {of[i]};
        run_batch(batch, cancel);
        continue;
      }
    }
    if (status != MRI_OK) batch.fail(*of[i], status, err, host_);
  }
}

// More tokens than one forward call takes: chunk by chunk.
void Engine::step_long(mri_step_seq& seq, Context& context, const uint32_t* cancel) {
  const uint32_t before = context.cache.n_tokens();
  context.cache.hold();
  try {
    for (uint64_t done = 0; done < seq.n_tokens;) {
      const auto n =
          static_cast<uint32_t>(std::min<uint64_t>(options_.chunk_tokens, seq.n_tokens - done));
      const bool last = done + n == seq.n_tokens;
      float* logits = seq.all_logits != 0 && seq.logits != nullptr
                          ? seq.logits + done * model_->config.vocab
                          : (last ? seq.logits : nullptr);
      context.cache.append(n);
      const ForwardSeq part{
          &context.cache, seq.tokens + done,  n, last ? MRI_ATTN_SEQ_PROMPT_END : 0u,
          logits,         seq.all_logits != 0};
      forward_->run(std::span(&part, 1), cancel);
      context.cache.apply_policy(MRI_TIER_WHY_APPEND, 0);
      done += n;
    }
  } catch (...) {
    context.cache.truncate(before);
    context.cache.release_hold();
    throw;
  }
  context.cache.release_hold();
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
