// How much attention each block receives, for the kv_tier policy (runtime.mass_tokens). Measured on
// what the plan reads: for each of its lists, softmax over the 2-bit sketches of the blocks before
// the list's queries. The blocks that queries lie in, and summaries, take no part.
#include <cmath>

#include "adapters/light/forward/forward.h"
#include "adapters/light/forward/workspace.h"
#include "mri/sdk/error.hpp"

namespace varve::light {
namespace {

constexpr uint32_t kQueryStep = 8;  // of a prompt, each eighth query is looked at

// One list of the plan, with the items that it was cut into; its blocks in the arrays of Lists.
struct List {
  const mri_attn_item* item;
  size_t first, n;
  uint32_t query_step() const { return item->n_queries > 1 ? kQueryStep : 1; }
};

struct Lists {
  std::vector<List> all;
  std::vector<uint32_t> blocks;
  std::vector<int32_t> distances;

  Lists(const mri_attn_req& req, const mri_attn_plan& plan) {
    for (uint64_t i = 0; i < plan.n_items; ++i) {
      const mri_attn_item& item = plan.items[i];
      if (all.empty() || !is_same(*all.back().item, item)) all.push_back({&item, blocks.size(), 0});
      for (uint32_t e = 0; e < item.n_entries; ++e)
        add(req, item, plan.entries[item.first_entry + e]);
      all.back().n = blocks.size() - all.back().first;
    }
  }

 private:
  static bool is_same(const mri_attn_item& a, const mri_attn_item& b) {
    return a.seq == b.seq && a.kv_head == b.kv_head && a.first_query == b.first_query;
  }

  void add(const mri_attn_req& req, const mri_attn_item& item, const mri_attn_entry& entry) {
    if (entry.what != MRI_ATTN_BLOCKS) return;
    const mri_attn_seq& seq = req.seqs[item.seq];
    const uint32_t own = (seq.position + item.first_query) / MRI_BLOCK_TOKENS;
    for (uint32_t i = 0; i < entry.count && entry.index + i < own; ++i) {
      if ((seq.blocks[entry.index + i].flags & MRI_BLOCK_EVICTED) != 0) continue;
      blocks.push_back(entry.index + i);
      distances.push_back(entry.distance - static_cast<int32_t>(i));
    }
  }
};

}  // namespace

void Forward::measure_mass(const mri_attn_req& req, Workspace& work) const {
  const Lists lists(req, work.plan);
  std::vector<float> scores(lists.blocks.size());
  host_.parallel_for(lists.all.size(), [&](uint64_t i, uint32_t) {
    const List& list = lists.all[i];
    if (list.n == 0) return;
    const mri_status status = kernel_table()->score_blocks(
        nullptr, &req, list.item, MRI_SCORE_SKETCH, &lists.blocks[list.first],
        &lists.distances[list.first], list.n, list.query_step(), &scores[list.first]);
    if (status != MRI_OK) throw mri::Error(status, "the attention of a list cannot be measured");
  });
  // In the plan's order, whatever thread was first: sums of the same numbers are the same.
  for (const List& list : lists.all) {
    const mri_attn_item& item = *list.item;
    const uint32_t later = req.seqs[item.seq].n_queries - item.first_query - item.n_queries;
    const uint32_t rows = (item.n_queries + list.query_step() - 1) / list.query_step() *
                          (req.n_heads / req.n_kv_heads) * config_.n_layers * config_.n_kv_heads;
    const double weight = store_.mass_weight(item.n_queries) / rows *
                          std::exp2(-static_cast<double>(later) / store_.options().mass_tokens);
    std::vector<float>& mass = work.mass[item.seq];
    for (size_t i = list.first; i < list.first + list.n; ++i)
      mass[lists.blocks[i]] += static_cast<float>(weight) * scores[i];
  }
}

}  // namespace varve::light
