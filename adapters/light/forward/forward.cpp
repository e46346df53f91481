#include "adapters/light/forward/forward.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "adapters/light/forward/workspace.h"
#include "kernels/gemm.h"
#include "kernels/norm.h"
#include "mri/sdk/error.hpp"

namespace varve::light {

Forward::Forward(const Model& model, const RopeTables& rope, const KvStore& store,
                 kernels::Compute compute, std::shared_ptr<const ResidentWeights> resident)
    : model_(model),
      config_(model.config),
      store_(store),
      host_(store.host()),
      products_(compute == kernels::Compute::kBf16 && kernels::cpu::gemm_prefers_bf16()
                    ? kernels::Compute::kBf16
                    : kernels::Compute::kF32),
      resident_(std::move(resident)),
      scale_(rope.magnitude() * rope.magnitude() /
             std::sqrt(static_cast<float>(model.config.head_dim))),
      attention_(store.host().peer<mri_attention_v1>(MRI_ATTENTION)) {
  if (!attention_)
    throw mri::Error(MRI_E_ARG,
                     "the stack has no attention plugin; set attention.plugin in the profile");
  const mri_rope& r = rope.rope();
  attention_runtime_.store = &store;
  attention_runtime_.compute = compute;
  attention_runtime_.rope = {r.fine_cos, r.fine_sin, r.coarse_cos, r.coarse_sin,
                             r.n_fine,   r.n_coarse, r.head_dim,   r.rotary_dim};
}

Forward::~Forward() = default;

// A workspace for as long as a call takes, whatever way it ends. Small and large calls have their
// own, so that a decode does not hold the buffers of a prefill; what more than a few callers at
// once needed is not kept.
class Forward::Loan {
 public:
  Loan(Forward& forward, uint32_t rows) : forward_(forward), path_(forward.path_of(rows)) {
    {
      MutexLock lock(forward_.mutex_);
      auto& spare = forward_.spare_[static_cast<size_t>(path_)];
      if (!spare.empty()) {
        workspace_ = std::move(spare.back());
        spare.pop_back();
      }
    }
    if (workspace_ == nullptr) workspace_ = std::make_unique<Workspace>();
    workspace_->reshape(forward_.config_, forward_.products_, path_, rows,
                        forward_.host_.concurrency());
  }
  ~Loan() {
    MutexLock lock(forward_.mutex_);
    auto& spare = forward_.spare_[static_cast<size_t>(path_)];
    if (spare.size() < kSpareWorkspacesMax) spare.push_back(std::move(workspace_));
  }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  Workspace& operator*() const { return *workspace_; }

 private:
  Forward& forward_;
  const Path path_;
  std::unique_ptr<Workspace> workspace_;
};

Forward::Path Forward::path_of(uint32_t rows) const {
  if (rows <= kFewRowsMax) return Path::kFew;
  return resident_ != nullptr && rows <= kPanelRowsMax ? Path::kPanels : Path::kMany;
}

void Forward::warm_up(uint32_t rows) { Loan(*this, rows); }

void Forward::run(std::span<const ForwardSeq> seqs, const uint32_t* cancel) {
  uint32_t rows = 0;
  for (const ForwardSeq& seq : seqs) rows += seq.n_tokens;
  const Loan loan(*this, rows);
  Workspace& work = *loan;
  const bool timed =
      std::any_of(seqs.begin(), seqs.end(), [](const auto& s) { return s.timings != nullptr; });
  work.times = nullptr;
  if (!timed) return run_layers(seqs, work, cancel);
  CallTimes times(seqs.size());
  work.times = &times;
  {
    const Timer timer(&times.call_ns);
    run_layers(seqs, work, cancel);
  }
  work.times = nullptr;
  times.share(seqs);
}

void Forward::run_layers(std::span<const ForwardSeq> seqs, Workspace& work,
                         const uint32_t* cancel) const {
  work.lay_out(seqs);
  work.mass.clear();
  if (store_.tier && store_.options().mass_tokens > 0) {
    for (const ForwardSeq& seq : seqs) work.mass.emplace_back(seq.cache->blocks().size());
  }
  embed(seqs, work);
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    if (cancel != nullptr && __atomic_load_n(cancel, __ATOMIC_RELAXED) != 0)
      throw mri::Error(MRI_E_CANCELLED, "cancelled");
    switch (work.path) {
      case Path::kFew:
        layer_few(layer, seqs, work);
        break;
      case Path::kPanels:
        layer_panels(layer, seqs, work);
        break;
      case Path::kMany:
        layer_many(layer, seqs, work);
    }
  }
  note_reads(seqs, work);
  head(seqs, work);
}

void Forward::embed(std::span<const ForwardSeq> seqs, Workspace& work) const {
  uint32_t row = 0;
  for (const ForwardSeq& seq : seqs) {
    for (uint32_t i = 0; i < seq.n_tokens; ++i, ++row) {
      model_.embedding_row(static_cast<uint32_t>(seq.tokens[i]),
                           work.x.data() + static_cast<size_t>(row) * config_.n_embd);
    }
  }
}

// Biases and the norms of single heads (qwen3), in place.
void Forward::finish_qkv(uint32_t layer, Workspace& work, uint32_t first_row,
                         uint32_t n_rows) const {
  const Model::Layer& weights = model_.layers[layer];
  if (weights.bias_qkv.empty() && weights.q_norm.empty()) return;
  for (uint32_t row = first_row; row < first_row + n_rows; ++row) {
    float* qkv = work.qkv.data() + row * work.qkv_stride;
    for (size_t i = 0; i < weights.bias_qkv.size(); ++i) qkv[i] += weights.bias_qkv[i];
    if (weights.q_norm.empty()) continue;
    for (uint32_t head = 0; head < config_.n_heads + config_.n_kv_heads; ++head) {
      const float* norm = head < config_.n_heads ? weights.q_norm.data() : weights.k_norm.data();
      float* values = qkv + static_cast<size_t>(head) * config_.head_dim;
      kernels::cpu::rms_norm(values, norm, config_.norm_eps, values, config_.head_dim);
    }
  }
}

void Forward::write_kv(uint32_t layer, std::span<const ForwardSeq> seqs, Workspace& work) const {
  const Timer timer(work.times != nullptr ? &work.times->write_ns : nullptr);
  const uint32_t heads = config_.n_kv_heads, dim = config_.head_dim;
  const auto write = [&](uint64_t i, uint32_t) {
    const Workspace::KvSpan& span = work.kv_spans[i / heads];
    const auto head = static_cast<uint32_t>(i % heads);
    const float* k = work.qkv.data() + span.row * work.qkv_stride + config_.q_rows() +
                     static_cast<size_t>(head) * dim;
    seqs[span.seq].cache->write(layer, head, span.first, span.n, k, work.qkv_stride,
                                k + config_.kv_rows(), work.qkv_stride);
  };
  const uint64_t n = work.kv_spans.size() * heads;
  if (work.rows > kSerialRowsMax) {
    host_.parallel_for(n, write);
  } else {
    for (uint64_t i = 0; i < n; ++i) write(i, 0);
  }
}

void Forward::attend(uint32_t layer, std::span<const ForwardSeq> seqs, Workspace& work) const {
  // Queries lie apart from keys and values in one row: attention wants them dense.
  for (uint32_t row = 0; row < work.rows; ++row) {
    std::copy_n(work.qkv.data() + row * work.qkv_stride, config_.q_rows(),
                work.q.data() + size_t{row} * config_.q_rows());
  }
  for (size_t s = 0; s < seqs.size(); ++s) {
    mri_attn_seq& seq = work.attn_seqs[s];
    seq.blocks = seqs[s].cache->blocks().data();
    seq.n_blocks = static_cast<uint32_t>(seqs[s].cache->blocks().size());
    seq.summaries = seqs[s].cache->summaries().data();
    seq.n_summaries =
        seqs[s].no_summaries ? 0 : static_cast<uint32_t>(seqs[s].cache->summaries().size());
  }
  mri_attn_req req{};
  req.hdr.struct_size = sizeof(req);
  req.seqs = work.attn_seqs.data();
  req.rope = &store_.rope();
  req.q = work.q.data();
  req.o = work.o.data();
  req.lse = work.lse.data();
  req.n_seqs = static_cast<uint32_t>(seqs.size());
  req.layer = layer;
  req.n_heads = config_.n_heads;
  req.n_kv_heads = config_.n_kv_heads;
  req.head_dim = config_.head_dim;
  req.scale = scale_;
  req.trained_tokens = config_.trained_tokens;
  req.runtime = &attention_runtime_;
  req.times = work.times != nullptr ? &work.times->attention : nullptr;
  mri_error err{};
  err.struct_size = sizeof(err);
  mri_attn_plan& plan = work.plan;
  mri_status status = MRI_E_SPACE;
  for (int attempt = 0; attempt < 3 && status == MRI_E_SPACE; ++attempt) {
    work.reserve_plan();
    status = attention_.table->plan(attention_.self, &req, &plan, &err);
  }
  check_plugin_call(status, err, "attention plan");
  if (work.times != nullptr) work.times->add_plan(plan);
  check_plugin_call(attention_.table->run(attention_.self, &req, &plan, &err), err,
                    "attention run");
  if (!work.mass.empty()) measure_mass(req, work);
}

void Forward::note_reads(std::span<const ForwardSeq> seqs, const Workspace& work) const {
  if (!store_.tier) return;
  std::vector<uint32_t> blocks;
  for (size_t s = 0; s < seqs.size(); ++s) {
    blocks.clear();
    for (uint64_t i = 0; i < work.plan.n_items; ++i) {
      const mri_attn_item& item = work.plan.items[i];
      if (item.seq != s) continue;
      for (uint32_t e = item.first_entry; e < item.first_entry + item.n_entries; ++e) {
        const mri_attn_entry& entry = work.plan.entries[e];
        if (entry.what != MRI_ATTN_BLOCKS) continue;
        for (uint32_t b = 0; b < entry.count; ++b) blocks.push_back(entry.index + b);
      }
    }
    seqs[s].cache->note_reads(blocks);
    if (!work.mass.empty()) seqs[s].cache->note_mass(work.mass[s], seqs[s].n_tokens);
  }
}

}  // namespace varve::light
