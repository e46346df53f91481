// attention/streaming: StreamingLLM. Each query reads the text's first tokens, the attention sinks,
// and a sliding window; what lies between is never read. Positions are those in that cache, not in
// the text: the sinks stand directly before the window, so no distance ever exceeds what is kept.
//
// The unit is a block: sinks and window are rounded up to whole ones, and the window moves on when
// a block is full. plan() lists the blocks, run() hands the list to the runtime's kernels.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "mri/sdk/attention.hpp"

namespace {

constexpr uint32_t kBlock = MRI_BLOCK_TOKENS;

class Streaming {
 public:
  Streaming(const mri::Host& host, const mri::Params& params)
      : host_(host),
        kernels_(host.kernels()),
        sink_blocks_(blocks_of(params.get<uint32_t>("sink_tokens"))),
        window_blocks_(blocks_of(params.get<uint32_t>("window_tokens"))) {}

  static void caps(mri_caps& caps) {
    caps.thread_model = 3;
    caps.determinism = 3;
  }

  // One item per KV head and per block that the queries lie in: each query slides its own window.
  mri_status plan(const mri_attn_req& req, mri_attn_plan& plan) const {
    mri::Writer<mri_attn_item> items(plan.items, plan.items_capacity, &plan.n_items);
    mri::Writer<mri_attn_entry> entries(plan.entries, plan.entries_capacity, &plan.n_entries);
    for (uint32_t s = 0; s < req.n_seqs; ++s) {
      const mri_attn_seq& seq = req.seqs[s];
      for (uint32_t query = 0; query < seq.n_queries;) {
        const uint32_t position = seq.position + query;
        const uint32_t n = std::min(kBlock - position % kBlock, seq.n_queries - query);
        const auto first_entry = static_cast<uint32_t>(plan.n_entries);
        list_blocks(seq, position / kBlock, entries);
        const uint32_t n_entries = static_cast<uint32_t>(plan.n_entries) - first_entry;
        for (uint32_t head = 0; head < req.n_kv_heads; ++head) {
          items.push({s, head, query, n, first_entry, n_entries, 0, 0});
        }
        query += n;
      }
    }
    return std::max(items.status(), entries.status());  // MRI_E_SPACE when either was full
  }

  mri_status run(const mri_attn_req& req, const mri_attn_plan& plan) const {
    if (req.n_kv_heads == 0) throw mri::Error(MRI_E_ARG, "streaming: n_kv_heads is 0");
    std::atomic<mri_status> status{MRI_OK};
    host_.parallel_for(plan.n_items, [&](uint64_t i, uint32_t) {
      if (continues(plan, i)) return;  // belongs to the item before
      mri_status code = MRI_OK;
      for (uint64_t part = i; part == i || continues(plan, part); ++part) {
        if (code == MRI_OK) code = run_item(req, plan, plan.items[part], part == i);
      }
      if (code != MRI_OK) status = code;
    });
    return status;
  }

 private:
  static uint32_t blocks_of(uint32_t tokens) { return (tokens + kBlock - 1) / kBlock; }

  // Until the window has left the sinks behind, positions are those of the text.
  void list_blocks(const mri_attn_seq& seq, uint32_t query_block,
                   mri::Writer<mri_attn_entry>& entries) const {
    const uint32_t end = std::min(query_block + 1, seq.n_blocks);
    const uint32_t window = query_block - std::min(query_block, window_blocks_);
    if (window <= sink_blocks_) return list_runs(seq, 0, end, query_block, entries);
    list_runs(seq, 0, sink_blocks_, window_blocks_ + sink_blocks_, entries);
    list_runs(seq, window, end, window_blocks_, entries);
  }

  // The blocks [first, end) that are there; the first stands `distance` blocks before the query's.
  static void list_runs(const mri_attn_seq& seq, uint32_t first, uint32_t end, uint32_t distance,
                        mri::Writer<mri_attn_entry>& entries) {
    const auto is_there = [&](uint32_t b) {
      return (seq.blocks[b].flags & MRI_BLOCK_EVICTED) == 0;
    };
    for (uint32_t block = first; block < end; ++block) {
      uint32_t run_end = block;
      while (run_end < end && is_there(run_end)) ++run_end;
      if (run_end == block) continue;
      const auto nearer = static_cast<int32_t>(block - first);
      entries.push(
          {MRI_ATTN_BLOCKS, block, run_end - block, static_cast<int32_t>(distance) - nearer, 0.f});
      block = run_end;  // the run's end is an evicted block, or the end of all
    }
  }

  // A list may cut an item into neighbouring ones of the same queries; their results are merged.
  static bool continues(const mri_attn_plan& plan, uint64_t i) {
    if (i == 0 || i >= plan.n_items) return false;
    const mri_attn_item &a = plan.items[i - 1], &b = plan.items[i];
    return a.seq == b.seq && a.kv_head == b.kv_head && a.first_query == b.first_query;
  }

  mri_status run_item(const mri_attn_req& req, const mri_attn_plan& plan, const mri_attn_item& item,
                      bool is_first) const {
    const uint64_t group = req.n_heads / req.n_kv_heads;
    const uint64_t row = uint64_t{req.seqs[item.seq].first_row} + item.first_query;
    const uint64_t head = row * req.n_heads + item.kv_head * group;
    const uint64_t stride = uint64_t{req.n_heads} * req.head_dim;
    float *const o = req.o + head * req.head_dim, *const lse = req.lse + head;
    const mri_attn_entry* const entries = plan.entries + item.first_entry;
    if (is_first) {
      return kernels_.attend(kernels_.self, &req, &item, entries, item.n_entries, o, stride, lse,
                             req.n_heads);
    }
    std::vector<float> part_o(item.n_queries * group * req.head_dim);
    std::vector<float> part_lse(item.n_queries * group);
    const mri_status status =
        kernels_.attend(kernels_.self, &req, &item, entries, item.n_entries, part_o.data(),
                        group * req.head_dim, part_lse.data(), group);
    for (uint64_t q = 0; q < item.n_queries && status == MRI_OK; ++q) {
      kernels_.merge(kernels_.self, group, req.head_dim, o + q * stride, lse + q * req.n_heads,
                     &part_o[q * group * req.head_dim], &part_lse[q * group]);
    }
    return status;
  }

  mri::Host host_;
  const mri_kernels_v1& kernels_;
  uint32_t sink_blocks_, window_blocks_;
};

constexpr mri_param_desc kParams[] = {
    mri::param_int("sink_tokens", 4, 0, 4096, "first tokens of the text that all queries read"),
    mri::param_int("window_tokens", 1024, 32, 1 << 20,
                   "tokens before the query that it reads; reading time grows with it"),
};

}  // namespace

MRI_PLUGIN(attention, "org.example.attention.streaming", "1.0.0", kParams, Streaming);
