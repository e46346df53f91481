// Exact attention: every query reads every live block before it, at true positions.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "mri/sdk/attention.hpp"

namespace {

constexpr uint32_t kBlock = MRI_BLOCK_TOKENS;
constexpr uint32_t kPartBlocks = 32;  // a shorter part costs more to merge than it saves

// Queries [first, first + n) of a sequence; they start in `block` and end in `last`.
struct Tile {
  uint32_t first, n, block, last;
};

// Adds the time of its life to local_ns; does nothing when the caller did not ask.
class Timer {
 public:
  explicit Timer(const mri_attn_req& req)
      : times_(req.times != nullptr && req.times->struct_size >= sizeof(mri_attn_times) ? req.times
                                                                                        : nullptr) {
    if (times_ != nullptr) start_ = std::chrono::steady_clock::now();
  }
  ~Timer() {
    if (times_ == nullptr) return;
    const std::chrono::nanoseconds passed = std::chrono::steady_clock::now() - start_;
    times_->local_ns += static_cast<uint64_t>(passed.count());
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  mri_attn_times* const times_;
  std::chrono::steady_clock::time_point start_;
};

class Dense {
 public:
  Dense(const mri::Host& host, const mri::Params& params)
      : host_(host),
        kernels_(host.kernels()),
        tile_queries_(params.get<uint32_t>("tile_queries") / kBlock * kBlock) {}

  mri_status plan(const mri_attn_req& req, mri_attn_plan& plan) const {
    const Timer timer(req);
    if (req.n_kv_heads == 0) throw mri::Error(MRI_E_ARG, "dense: n_kv_heads is 0");
    mri::Writer<mri_attn_item> items(plan.items, plan.items_capacity, &plan.n_items);
    mri::Writer<mri_attn_entry> entries(plan.entries, plan.entries_capacity, &plan.n_entries);
    const uint32_t parts = parts_per_item(req);
    for (uint32_t s = 0; s < req.n_seqs; ++s) {
      const mri_attn_seq& seq = req.seqs[s];
      for (uint32_t end = seq.n_queries; end > 0;) {  // longest first, for balance
        const Tile tile = tile_before(seq, end);
        plan_tile(req, s, tile, parts, plan, items, entries);
        end = tile.first;
      }
    }
    return std::max(items.status(), entries.status());
  }

  mri_status run(const mri_attn_req& req, const mri_attn_plan& plan) const {
    const Timer timer(req);
    const uint64_t group = req.n_heads / req.n_kv_heads, row = group * (req.head_dim + 1);
    // Parts of one item: the first writes the result, the others write scratch, which is then
    // merged.
    std::vector<uint64_t> scratch_at(plan.n_items);
    uint64_t scratch_size = 0;
    for (uint64_t i = 0; i < plan.n_items; ++i) {
      scratch_at[i] = scratch_size;
      if (continues(plan, i)) scratch_size += plan.items[i].n_queries * row;
    }
    std::vector<float> scratch(scratch_size);
    std::atomic<mri_status> status{MRI_OK};
    host_.parallel_for(plan.n_items, [&](uint64_t i, uint32_t) {
      const mri_attn_item& item = plan.items[i];
      const bool part = continues(plan, i);
      float* o = part ? &scratch[scratch_at[i]] : out(req, item, 0);
      float* lse = part ? o + item.n_queries * group * req.head_dim : out_lse(req, item, 0);
      const mri_status code = kernels_.attend(
          kernels_.self, &req, &item, plan.entries + item.first_entry, item.n_entries, o,
          (part ? group : req.n_heads) * req.head_dim, lse, part ? group : req.n_heads);
      if (code != MRI_OK) status = code;
    });
    for (uint64_t i = 0; i < plan.n_items; ++i) {
      if (!continues(plan, i)) continue;
      const mri_attn_item& item = plan.items[i];
      const float* o = &scratch[scratch_at[i]];
      const float* lse = o + item.n_queries * group * req.head_dim;
      for (uint32_t q = 0; q < item.n_queries; ++q) {
        kernels_.merge(kernels_.self, group, req.head_dim, out(req, item, q), out_lse(req, item, q),
                       o + q * group * req.head_dim, lse + q * group);
      }
    }
    return status;
  }

 private:
  // A tile ends at a block boundary or with the sequence, so that all but the first start at one.
  Tile tile_before(const mri_attn_seq& seq, uint32_t end) const {
    const uint32_t lead = seq.position % kBlock, behind = (lead + end - 1) % tile_queries_ + 1;
    const uint32_t n = std::min(behind, end), first = end - n;
    return {first, n, (seq.position + first) / kBlock, (seq.position + end - 1) / kBlock};
  }

  // How many parts to cut each item into, so that a few long ones keep all cores busy.
  uint32_t parts_per_item(const mri_attn_req& req) const {
    uint64_t items = 0;
    for (uint32_t s = 0; s < req.n_seqs; ++s) {
      items += (req.seqs[s].n_queries + tile_queries_ - 1) / tile_queries_ * req.n_kv_heads;
    }
    const uint32_t cores = host_.concurrency();
    return items < 4 * uint64_t{cores} ? cores : 1;
  }

  void plan_tile(const mri_attn_req& req, uint32_t s, const Tile& tile, uint32_t parts,
                 mri_attn_plan& plan, mri::Writer<mri_attn_item>& items,
                 mri::Writer<mri_attn_entry>& entries) const {
    const mri_attn_seq& seq = req.seqs[s];
    const uint32_t n_blocks = std::min(tile.last + 1, seq.n_blocks);
    parts = std::clamp(n_blocks / kPartBlocks, 1u, parts);
    std::vector<std::pair<uint32_t, uint32_t>> lists;  // first entry, entries
    for (uint32_t p = 0; p < parts; ++p) {
      const auto begin = static_cast<uint32_t>(uint64_t{n_blocks} * p / parts);
      const auto end = static_cast<uint32_t>(uint64_t{n_blocks} * (p + 1) / parts);
      const auto first = static_cast<uint32_t>(plan.n_entries);
      for (uint32_t b = begin; b < end; ++b) {
        uint32_t run = b;
        while (run < end && (seq.blocks[run].flags & MRI_BLOCK_EVICTED) == 0) ++run;
        if (run == b) continue;
        const auto distance = static_cast<int32_t>(tile.block) - static_cast<int32_t>(b);
        entries.push({MRI_ATTN_BLOCKS, b, run - b, distance, 0.f});
        b = run;
      }
      lists.emplace_back(first, static_cast<uint32_t>(plan.n_entries) - first);
    }
    for (uint32_t h = 0; h < req.n_kv_heads; ++h) {
      for (const auto& [first, n] : lists) {
        items.push({s, h, tile.first, tile.n, first, n, 0, 0});
      }
    }
  }

  static bool continues(const mri_attn_plan& plan, uint64_t i) {
    if (i == 0) return false;
    const mri_attn_item &a = plan.items[i - 1], &b = plan.items[i];
    return a.seq == b.seq && a.kv_head == b.kv_head && a.first_query == b.first_query;
  }

  static uint64_t head_row(const mri_attn_req& req, const mri_attn_item& item, uint32_t query) {
    const uint64_t row = uint64_t{req.seqs[item.seq].first_row} + item.first_query + query;
    return row * req.n_heads + item.kv_head * (req.n_heads / req.n_kv_heads);
  }
  static float* out(const mri_attn_req& req, const mri_attn_item& item, uint32_t query) {
    return req.o + head_row(req, item, query) * req.head_dim;
  }
  static float* out_lse(const mri_attn_req& req, const mri_attn_item& item, uint32_t query) {
    return req.lse + head_row(req, item, query);
  }

  mri::Host host_;
  const mri_kernels_v1& kernels_;
  uint32_t tile_queries_;
};

constexpr mri_param_desc kParams[] = {
    mri::param_int("tile_queries", 128, 32, 256,
                   "prompt tokens that are computed together; rounded down to a multiple of 32"),
};

}  // namespace

MRI_PLUGIN(attention, "dev.varve.attention.dense", "0.1.0", kParams, Dense);
