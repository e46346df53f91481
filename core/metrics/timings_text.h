// Attention timings as operators read them: sums, shares, and what to do about them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "mri/ext/timings.h"

namespace varve {

// Adds `part` to `sum`. Fewest and most blocks of one choice are of both.
void add_timings(const mri_timings& part, mri_timings* sum);

// Shares of the whole, 0..1; all 0 when nothing was timed.
struct TimingShares {
  double local = 0, sparse = 0, summary = 0, kv_cache = 0, other = 0;
};
TimingShares timing_shares(const mri_timings& timings);

// Share of the chosen blocks that were chosen for the token before too, 0..1; 0 without choices.
double sparse_hit_rate(const mri_timings& timings);

// {"local_attn_ms", "sparse_attn_ms", "summary_attn_ms", "kv_cache_ms", "other_ms",
//  "sparse_attn_hit_rate", "topk_dynamics": {"mean", "min", "max", "reused"}}
// topk_dynamics counts blocks of one choice; "reused" is how many of all the chosen ones were
// chosen the time before too.
nlohmann::json timings_json(const mri_timings& timings);

// Shares past which a part says that something is set wrong.
inline constexpr double kLocalShareMax = 0.60, kSparseShareMax = 0.50, kKvShareMax = 0.70;

// A sentence for each rule that is broken: what was found and what to change.
std::vector<std::string> timings_advice(const mri_timings& timings);

}  // namespace varve
