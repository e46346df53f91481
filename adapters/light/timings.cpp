#include "adapters/light/timings.h"

#include <algorithm>

#include "adapters/light/forward/forward.h"

namespace varve::light {
namespace {

uint64_t part(uint64_t whole, double share) {
  return static_cast<uint64_t>(static_cast<double>(whole) * share);
}

void add_choices(const mri_attn_times& call, double share, mri_timings& sum) {
  if (call.n_choices == 0 || share <= 0) return;
  sum.blocks_min = sum.n_choices == 0 ? call.blocks_min : std::min(sum.blocks_min, call.blocks_min);
  sum.blocks_max = std::max(sum.blocks_max, call.blocks_max);
  sum.n_choices += part(call.n_choices, share);
  sum.blocks_chosen += part(call.blocks_chosen, share);
  sum.blocks_chosen_again += part(call.blocks_chosen_again, share);
}

}  // namespace

void CallTimes::add_plan(const mri_attn_plan& plan) {
  if (reads.size() == 1) return;  // nobody to share with
  for (uint64_t i = 0; i < plan.n_items; ++i) {
    const mri_attn_item& item = plan.items[i];
    uint64_t pages = 0;
    for (uint32_t e = 0; e < item.n_entries; ++e) pages += plan.entries[item.first_entry + e].count;
    reads[item.seq] += static_cast<double>(pages) * item.n_queries;
  }
}

void CallTimes::share(std::span<const ForwardSeq> seqs) const {
  double all_reads = 0, all_tokens = 0, n_answers = 0;
  for (size_t s = 0; s < seqs.size(); ++s) {
    all_reads += reads[s];
    all_tokens += seqs[s].n_tokens;
    n_answers += (seqs[s].flags & MRI_ATTN_SEQ_DECODE) != 0;
  }
  const uint64_t known = attention.local_ns + attention.sparse_ns + attention.summary_ns + write_ns;
  for (size_t s = 0; s < seqs.size(); ++s) {
    if (seqs[s].timings == nullptr) continue;
    mri_timings& sum = *seqs[s].timings;
    const double tokens = seqs[s].n_tokens / all_tokens;
    const double read = all_reads > 0 ? reads[s] / all_reads : tokens;
    const bool answers = (seqs[s].flags & MRI_ATTN_SEQ_DECODE) != 0;
    sum.local_attn_ns += part(attention.local_ns, read);
    sum.sparse_attn_ns += part(attention.sparse_ns, read);
    sum.summary_attn_ns += part(attention.summary_ns, read);
    sum.kv_cache_ns += part(write_ns, tokens);
    sum.other_ns += part(call_ns - std::min(call_ns, known), tokens);
    sum.n_tokens += seqs[s].n_tokens;
    add_choices(attention, answers ? 1 / n_answers : 0, sum);
  }
}

}  // namespace varve::light
