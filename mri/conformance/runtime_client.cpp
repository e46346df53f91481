#include "mri/conformance/runtime_client.h"

#include <cmath>

#include "mri/conformance/opened.h"
#include "mri/ext/text.h"

namespace mri::conformance {
namespace {

class LocalRuntime : public RuntimeClient {
 public:
  LocalRuntime(Bench& bench, const std::string& withheld)
      : bench_(bench),
        plugin_(bench, withheld),
        table_(plugin_.table<mri_runtime_v1>(MRI_RUNTIME)) {
    const auto* text = plugin_.find<mri_text_v1>(MRI_TEXT);
    if (text == nullptr) return;
    mri_model_info info = sized<mri_model_info>();
    must(bench, "model_info", [&](mri_error* e) { return text->model_info(self(), &info, e); });
    vocabulary_ = info.vocab_size;
  }

  Inited init(const Init& init) override {
    Inited out;
    Guarded<float> logits(init.logits ? vocabulary_ : 0, NAN);
    mri_init_req req = sized<mri_init_req>();
    req.seed = bench_.seed;
    req.tokens = init.tokens.data();
    req.n_tokens = init.tokens.size();
    req.max_tokens = init.max_tokens;
    req.budget_bytes = init.budget_bytes;
    req.chunk_tokens = init.chunk_tokens;
    req.pinned = init.pinned.data();
    req.n_pinned = static_cast<uint32_t>(init.pinned.size());
    req.logits = init.logits ? logits.data() : nullptr;
    req.cancel = init.cancel;
    if (init.progress) {
      req.progress_user = const_cast<Init*>(&init);
      req.progress = [](void* user, uint64_t done, uint64_t n) {
        static_cast<const Init*>(user)->progress(done, n);
      };
    }
    mri_init_rsp rsp = sized<mri_init_rsp>();
    out.status = call(
        bench_, "init_context",
        [&](mri_error* e) { return table_.init_context(self(), &req, &rsp, e); }, &out.text);
    bench_.report->expect(logits.is_intact(), "init_context wrote outside logits");
    if (out.status != MRI_OK) return out;
    out.ctx = rsp.ctx;
    out.n_chunks = rsp.n_chunks;
    out.usage = rsp.usage;
    out.logits = logits.copy();
    return out;
  }

  SteppedAll step(const std::vector<Step>& steps) override {
    SteppedAll out;
    std::vector<mri_step_seq> seqs(steps.size());
    std::vector<std::unique_ptr<Guarded<float>>> logits;
    for (size_t i = 0; i < steps.size(); ++i) {
      const uint64_t rows = !steps[i].logits ? 0 : steps[i].all_logits ? steps[i].tokens.size() : 1;
      logits.push_back(std::make_unique<Guarded<float>>(rows * vocabulary_, NAN));
      seqs[i].ctx = steps[i].ctx;
      seqs[i].tokens = steps[i].tokens.data();
      seqs[i].n_tokens = steps[i].tokens.size();
      seqs[i].logits = rows > 0 ? logits[i]->data() : nullptr;
      seqs[i].all_logits = steps[i].all_logits ? 1 : 0;
      seqs[i].flags = steps[i].flags;
    }
    mri_step_req req = sized<mri_step_req>();
    req.step_id = ++n_steps_;
    req.seqs = seqs.data();
    req.n_seqs = seqs.size();
    mri_step_rsp rsp = sized<mri_step_rsp>();
    out.status = call(
        bench_, "forward_step",
        [&](mri_error* e) { return table_.forward_step(self(), &req, &rsp, e); }, &out.text);
    if (out.status != MRI_OK) return out;
    out.n_tokens = rsp.n_tokens;
    for (size_t i = 0; i < steps.size(); ++i) {
      bench_.report->expect(logits[i]->is_intact(), "forward_step wrote outside logits");
      bench_.report->expect(is_listed(seqs[i].status), "forward_step: a sequence's status is " +
                                                           std::to_string(seqs[i].status));
      out.seqs.push_back({seqs[i].status, seqs[i].position, logits[i]->copy()});
    }
    return out;
  }

  Listed list(uint64_t ctx, uint64_t first_token, uint64_t n_tokens) override {
    Listed out;
    Guarded<mri_kv_block_info> rows(4096);
    mri_summary_req req = sized<mri_summary_req>();
    req.first_token = first_token;
    req.n_tokens = n_tokens;
    req.out = rows.data();
    req.capacity = rows.size();
    mri_summary_rsp rsp = sized<mri_summary_rsp>();
    out.status = call(
        bench_, "get_kv_summary",
        [&](mri_error* e) { return table_.get_kv_summary(self(), ctx, &req, &rsp, e); }, &out.text);
    bench_.report->expect(rows.is_intact(), "get_kv_summary wrote outside its rows");
    if (out.status != MRI_OK) return out;
    out.n_out = rsp.n_out;
    out.kv_epoch = rsp.kv_epoch;
    out.usage = rsp.usage;
    out.rows.assign(rows.data(), rows.data() + std::min<uint64_t>(rsp.n_out, rows.size()));
    return out;
  }

  Evicted evict(uint64_t ctx, const std::vector<mri_token_range>& ranges,
                uint32_t granularity) override {
    Evicted out;
    mri_evict_req req = sized<mri_evict_req>();
    req.request_id = 1;
    req.ranges = ranges.data();
    req.n_ranges = ranges.size();
    req.granularity = granularity;
    Sized<mri_evict_rsp> rsp(mri_evict_rsp{}, bench_.version < MRI_1_1 ? MRI_EVICT_RSP_SIZE_1_0
                                                                       : MRI_EVICT_RSP_SIZE_1_1);
    out.status = call(
        bench_, "evict_kv",
        [&](mri_error* e) { return table_.evict_kv(self(), ctx, &req, rsp.get(), e); }, &out.text);
    bench_.report->expect(rsp.is_intact(), "evict_kv wrote behind struct_size");
    if (out.status != MRI_OK) return out;
    out.n_evicted = rsp->n_evicted;
    out.bytes_freed = rsp->bytes_freed;
    out.is_confirmation_there = rsp->hdr.written >= MRI_EVICT_RSP_SIZE_1_1;
    if (!out.is_confirmation_there) return out;
    out.confirm_state = rsp->confirm_state;
    out.n_refused = rsp->n_refused;
    out.confirm_epoch = rsp->confirm_epoch;
    return out;
  }

  void release(uint64_t ctx) override { table_.release_context(self(), ctx); }
  uint64_t vocabulary() override { return vocabulary_; }
  mri_caps caps() override { return plugin_.caps(); }

 private:
  void* self() const { return plugin_.self(); }

  Bench& bench_;
  Opened plugin_;
  const mri_runtime_v1& table_;
  uint64_t vocabulary_ = 0;
  std::atomic<uint64_t> n_steps_{0};
};

}  // namespace

std::unique_ptr<RuntimeClient> local_runtime(Bench& bench, const std::string& withheld) {
  return std::make_unique<LocalRuntime>(bench, withheld);
}

}  // namespace mri::conformance
