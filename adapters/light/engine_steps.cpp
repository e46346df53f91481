// forward_step: prompt pieces and answers of many contexts, together.
#include <algorithm>
#include <string>
#include <utility>

#include "adapters/light/engine_context.h"

namespace varve::light {
namespace {

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

// What attention is told of a sequence's tokens, `last` of which end the step. As init_context does
// chunk by chunk; tokens that nobody calls a prompt are one when they are several.
uint32_t attention_flags(const mri_step_seq& seq, bool last) {
  const bool prompt = (seq.flags & MRI_STEP_PROMPT) != 0;
  if (!prompt && seq.n_tokens == 1) return MRI_ATTN_SEQ_DECODE;
  return last && (seq.flags & MRI_STEP_MORE) == 0 ? MRI_ATTN_SEQ_PROMPT_END : 0u;
}

bool skips_summaries(const mri_step_seq& seq) { return (seq.flags & MRI_STEP_NO_SUMMARIES) != 0; }

}  // namespace

void Engine::forward_step(const mri_step_req& req, mri_step_rsp& rsp, mri_error* err) {
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
  if (!why.empty()) mri::set_error(err, MRI_OK, why);
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
  {
    const Timer timer(kv_cache_ns(context.timings.get()));
    cache.append(n);
  }
  batch.seqs.push_back({&cache, seq.tokens, n, attention_flags(seq, true), seq.logits,
                        seq.all_logits != 0, seq.ctx, skips_summaries(seq), context.timings.get()});
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
      const Timer timer(kv_cache_ns(seq.timings));
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
      const ForwardSeq part{&context.cache,
                            seq.tokens + done,
                            n,
                            attention_flags(seq, last),
                            logits,
                            seq.all_logits != 0,
                            0,
                            skips_summaries(seq),
                            context.timings.get()};
      forward_->run(std::span(&part, 1), cancel);
      const Timer timer(kv_cache_ns(context.timings.get()));
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

void Engine::enable_timings(uint64_t ctx, bool on) {
  Lease lease(*this, ctx);
  (*lease).timings = on ? std::make_unique<mri_timings>() : nullptr;
}

void Engine::read_timings(uint64_t ctx, mri_timings& timings) {
  Lease lease(*this, ctx);
  const Context& context = *lease;
  if (context.timings == nullptr)
    throw mri::Error(MRI_E_STATE, "the timings of context " + std::to_string(ctx) +
                                      " are off; enable them before its steps");
  const mri_rsp_hdr hdr = timings.hdr;
  timings = *context.timings;
  timings.hdr = hdr;
}

}  // namespace varve::light
