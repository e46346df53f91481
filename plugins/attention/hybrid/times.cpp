#include "times.h"

#include <algorithm>
#include <chrono>

namespace hybrid {

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

void Parts::add(const Parts& other, double scale) {
  local += other.local * scale;
  sparse += other.sparse * scale;
  summary += other.summary * scale;
}

Parts divide(const mri_attn_seq& seq, const mri_attn_item& item, const mri_attn_entry* entries,
             uint32_t sink_blocks, uint32_t window_first, uint64_t ns) {
  Parts pages;
  for (uint32_t i = 0; i < item.n_entries; ++i) {
    const mri_attn_entry& entry = entries[item.first_entry + i];
    if (entry.what == MRI_ATTN_SUMMARY) {
      for (uint32_t s = 0; s < entry.count; ++s) {
        pages.summary += seq.summaries[entry.index + s].n_pages;
      }
    } else if ((item.flags & kItemChose) == 0) {
      pages.local += entry.count;
    } else {
      for (uint32_t block = entry.index; block < entry.index + entry.count; ++block) {
        const bool is_sink = block < sink_blocks || (seq.blocks[block].flags & MRI_BLOCK_SINK) != 0;
        (is_sink || block >= window_first ? pages.local : pages.sparse) += 1;
      }
    }
  }
  Parts divided;
  if (pages.sum() > 0) divided.add(pages, static_cast<double>(ns) / pages.sum());
  return divided;
}

void add_divided(const std::vector<Parts>& items, uint64_t ns, mri_attn_times& times) {
  Parts all;
  for (const Parts& item : items) all.add(item, 1);
  if (all.sum() <= 0) {
    times.local_ns += ns;
    return;
  }
  const double scale = static_cast<double>(ns) / all.sum();
  const auto sparse = static_cast<uint64_t>(all.sparse * scale);
  const auto summary =
      std::min(static_cast<uint64_t>(all.summary * scale), ns - std::min(ns, sparse));
  times.sparse_ns += sparse;
  times.summary_ns += summary;
  times.local_ns += ns - std::min(ns, sparse + summary);
}

void add_choice(uint64_t n, uint64_t n_again, mri_attn_times& times) {
  times.blocks_min = times.n_choices == 0 ? n : std::min(times.blocks_min, n);
  times.blocks_max = std::max(times.blocks_max, n);
  ++times.n_choices;
  times.blocks_chosen += n;
  times.blocks_chosen_again += n_again;
}

}  // namespace hybrid
