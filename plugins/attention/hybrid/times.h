// Where the time of plan() and run() goes, when the caller asks.
//
// One kernel call reads sinks, window, chosen blocks and summaries together, so each item's call is
// timed, and its time divided by the pages of each kind that it reads: every page has 32 keys and
// costs about the same. The item's times, of all threads, then divide the time that passed in the
// calling thread. plan() is the choosing when anything was chosen.
#pragma once

#include <cstdint>
#include <vector>

#include "mri/kind/attention.h"

namespace hybrid {

// mri_attn_item::flags, from plan() to run(): blocks were chosen, not all of them read.
inline constexpr uint32_t kItemChose = 1;

uint64_t now_ns();

// Null when not asked for.
inline mri_attn_times* asked(const mri_attn_req& req) {
  return req.times != nullptr && req.times->struct_size >= sizeof(mri_attn_times) ? req.times
                                                                                  : nullptr;
}

// Time or pages of the three kinds.
struct Parts {
  double local = 0, sparse = 0, summary = 0;

  double sum() const { return local + sparse + summary; }
  void add(const Parts& other, double scale);
};

// The time of one item, divided. Blocks before `sink_blocks` and from `window_first` on are local.
Parts divide(const mri_attn_seq& seq, const mri_attn_item& item, const mri_attn_entry* entries,
             uint32_t sink_blocks, uint32_t window_first, uint64_t ns);

// Adds `ns` to `times`, divided as all items are together.
void add_divided(const std::vector<Parts>& items, uint64_t ns, mri_attn_times& times);

// One choice: n blocks, `n_again` of them chosen the time before too.
void add_choice(uint64_t n, uint64_t n_again, mri_attn_times& times);

}  // namespace hybrid
