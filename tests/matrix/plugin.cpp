// A plugin of each kind, made with the SDK of today: what kept_1_0/ does in C. Built once
// per kind (MATRIX_<KIND>) and version range. MATRIX_PLAIN: a runtime without optional interfaces;
// MATRIX_SHORT: one that fills an eviction's answer only as far as 1.0 goes; MATRIX_GREEDY: one
// that writes all of today's, whatever the caller has.
#include <limits>
#include <vector>

#include "mri/sdk/attention.hpp"
#include "mri/sdk/batching.hpp"
#include "mri/sdk/kv_tier.hpp"
#include "mri/sdk/quantizer.hpp"
#include "mri/sdk/runtime.hpp"
#include "mri/sdk/summary.hpp"

namespace {

// Uses every service that there is.
class Base {
 public:
  Base(mri::Host host, const mri::Params&) {
    host.log(MRI_LOG_INFO, "activated");
    host.record(host.define_metric(MRI_METRIC_COUNTER, "activations", "lives"), 1);
    std::atomic<uint64_t> n{0};
    host.parallel_for(10, [&](uint64_t, uint32_t) { ++n; });
    if (n != 10) throw mri::Error(MRI_E_INTERNAL, "a loop that did not end");
    const auto* buffer = host.find<mri_host_buffer_v1>(MRI_HOST_BUFFER);
    if (buffer == nullptr) return;
    void* scratch = buffer->alloc(host.raw(), 4096, 64, "scratch");
    if (scratch == nullptr) throw mri::Error(MRI_E_NOMEM, "no scratch memory");
    buffer->release(host.raw(), scratch);
  }
};

#if defined(MATRIX_QUANTIZER)
class quantizer : public Base {
 public:
  using Base::Base;
  void describe(uint32_t head_dim, mri_quant_desc& out) {
    out.format = MRI_KV_CUSTOM;
    out.body_bytes = 2 * bytes(head_dim);
    out.bits_per_value = 32;
  }
  void encode(const mri_quant_encode_req& req) {
    std::memcpy(req.body, req.k, bytes(req.head_dim));
    std::memcpy(req.body + bytes(req.head_dim), req.v, bytes(req.head_dim));
  }
  void decode(const mri_quant_decode_req& req) {
    std::memcpy(req.k, req.body, bytes(req.head_dim));
    std::memcpy(req.v, req.body + bytes(req.head_dim), bytes(req.head_dim));
  }

 private:
  static uint64_t bytes(uint32_t head_dim) {
    return uint64_t{MRI_BLOCK_TOKENS} * head_dim * sizeof(float);
  }
};
#elif defined(MATRIX_KV_TIER)
class kv_tier : public Base {
 public:
  using Base::Base;
  mri_status decide(const mri_tier_req& req, mri_tier_rsp& rsp) {
    mri::Writer<mri_tier_action> out(rsp.actions, rsp.capacity, &rsp.n_actions);
    for (uint64_t i = 0; i < req.n_blocks; ++i) {
      if (req.blocks[i].flags != 0) continue;
      out.push({req.blocks[i].id, MRI_TIER_DEMOTE, MRI_TIER_WARM, 0});
    }
    return out.status();
  }
};
#elif defined(MATRIX_ATTENTION)
class attention : public Base {
 public:
  using Base::Base;
  mri_status plan(const mri_attn_req& req, mri_attn_plan& plan) {
    mri::Writer<mri_attn_item> items(plan.items, plan.items_capacity, &plan.n_items);
    mri::Writer<mri_attn_entry> entries(plan.entries, plan.entries_capacity, &plan.n_entries);
    for (uint32_t s = 0; s < req.n_seqs; ++s) {
      for (uint32_t h = 0; h < req.n_kv_heads; ++h) {
        items.push({s, h, 0, req.seqs[s].n_queries, s * req.n_kv_heads + h, 0, 0, 0});
      }
    }
    return items.status();
  }
  void run(const mri_attn_req& req, const mri_attn_plan&) {
    const uint64_t n = uint64_t{req.n_heads} * req.n_seqs;  // one query each
    std::fill_n(req.o, n * req.head_dim, 0.0f);
    std::fill_n(req.lse, n, -std::numeric_limits<float>::infinity());
  }
};
#elif defined(MATRIX_SUMMARY)
class summary : public Base {
 public:
  using Base::Base;
  uint32_t pairs_max(uint32_t n_tokens) { return n_tokens; }
  void make(const mri_summary_make_req& req, mri_summary_make_rsp& rsp) {
    if (rsp.pairs_capacity < req.n_tokens) throw mri::Error(MRI_E_SPACE, "too few pairs");
    const uint64_t n = uint64_t{req.n_tokens} * req.head_dim;
    std::copy_n(req.k, n, rsp.k);
    std::copy_n(req.v, n, rsp.v);
    std::fill_n(rsp.log_count, req.n_tokens, 0.0f);
    rsp.n_pairs = req.n_tokens;
  }
};
#elif defined(MATRIX_BATCHING)
class batching : public Base {
 public:
  using Base::Base;
  mri_status next_step(const mri_batch_req& req, mri_batch_rsp& rsp) {
    mri::Writer<mri_batch_pick> out(rsp.picks, rsp.capacity, &rsp.n_picks);
    for (uint64_t i = req.n_requests; i-- > 0 && rsp.n_picks < req.sequences_max;) {
      out.push({static_cast<uint32_t>(i), 1, 0, 0});
    }
    return out.status();
  }
};
#else
class runtime : public Base {
 public:
  using Base::Base;
  void init_context(const mri_init_req& req, mri_init_rsp& rsp) {
    tokens_.push_back(req.n_tokens);
    rsp.ctx = tokens_.size();
  }
  void forward_step(const mri_step_req& req, mri_step_rsp& rsp) {
    for (uint64_t i = 0; i < req.n_seqs; ++i) {
      uint64_t& tokens = tokens_.at(req.seqs[i].ctx - 1);
      req.seqs[i].position = tokens;
      tokens += req.seqs[i].n_tokens;
      rsp.n_tokens += req.seqs[i].n_tokens;
    }
  }
  mri_status get_kv_summary(uint64_t ctx, const mri_summary_req& req, mri_summary_rsp& rsp) {
    mri::Writer<mri_kv_block_info> out(req.out, req.capacity, &rsp.n_out);
    for (uint64_t at = 0; at < tokens_.at(ctx - 1); at += MRI_BLOCK_TOKENS) {
      out.push({at / MRI_BLOCK_TOKENS + 1, at, MRI_BLOCK_TOKENS, MRI_TIER_HOT, 0});
    }
    return out.status();
  }
  void evict_kv(uint64_t, const mri_evict_req& req, mri_evict_rsp& rsp) {
    for (uint64_t i = 0; i < req.n_ranges; ++i) rsp.n_evicted += req.ranges[i].count;
#if MRI_TARGET_VERSION >= MRI_1_1
    rsp.confirm_state = MRI_CONFIRM_DONE;
    rsp.confirm_epoch = 1;
#endif
#ifdef MATRIX_SHORT
    rsp.hdr.written = MRI_EVICT_RSP_SIZE_1_0;
#endif
  }
  void release_context(uint64_t) {}
#ifndef MATRIX_PLAIN
  void enable_timings(uint64_t, bool) {}
  void read_timings(uint64_t, mri_timings&) {}
#endif

 private:
  std::vector<uint64_t> tokens_;
};
#endif

}  // namespace

#ifdef MATRIX_GREEDY
namespace mri::kind {
template <>
mri_status runtime<::runtime>::evict_kv(void* self, uint64_t ctx, const mri_evict_req* req,
                                        mri_evict_rsp* rsp, mri_error* err) {
  return guard(err, [&] {
    object<::runtime>(self).evict_kv(ctx, *req, *rsp);
    rsp->hdr.written = sizeof(*rsp);
    rsp->hdr.req_seen = sizeof(*req);
  });
}
}  // namespace mri::kind
#endif

// Once more through a macro, so that the kind's name is put in.
#define PLUGIN_OF(kind) MRI_PLUGIN(kind, "org.example.matrix", "1.0.0", mri::kNoParams, kind)
PLUGIN_OF(MATRIX_KIND);
