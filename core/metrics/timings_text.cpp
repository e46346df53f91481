#include "core/metrics/timings_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace varve {
namespace {

double total_ns(const mri_timings& t) {
  // Added as doubles: sums of a plugin are not trusted to stay below 2^64.
  return static_cast<double>(t.local_attn_ns) + static_cast<double>(t.sparse_attn_ns) +
         static_cast<double>(t.summary_attn_ns) + static_cast<double>(t.kv_cache_ns) +
         static_cast<double>(t.other_ns);
}

double ms(uint64_t ns) { return static_cast<double>(ns) / 1e6; }

}  // namespace

void add_timings(const mri_timings& part, mri_timings* sum) {
  sum->blocks_min = sum->n_choices == 0   ? part.blocks_min
                    : part.n_choices == 0 ? sum->blocks_min
                                          : std::min(sum->blocks_min, part.blocks_min);
  sum->blocks_max = std::max(sum->blocks_max, part.blocks_max);
  for (uint64_t mri_timings::*member :
       {&mri_timings::local_attn_ns, &mri_timings::sparse_attn_ns, &mri_timings::summary_attn_ns,
        &mri_timings::kv_cache_ns, &mri_timings::other_ns, &mri_timings::n_tokens,
        &mri_timings::n_choices, &mri_timings::blocks_chosen, &mri_timings::blocks_chosen_again}) {
    sum->*member += part.*member;
  }
}

TimingShares timing_shares(const mri_timings& t) {
  const double total = total_ns(t);
  if (total <= 0) return {};
  const auto share = [&](uint64_t ns) { return static_cast<double>(ns) / total; };
  return {share(t.local_attn_ns), share(t.sparse_attn_ns), share(t.summary_attn_ns),
          share(t.kv_cache_ns), share(t.other_ns)};
}

double sparse_hit_rate(const mri_timings& t) {
  return t.blocks_chosen == 0 ? 0
                              : std::min(1.0, static_cast<double>(t.blocks_chosen_again) /
                                                  static_cast<double>(t.blocks_chosen));
}

nlohmann::json timings_json(const mri_timings& t) {
  const bool chose = t.n_choices > 0;
  const double mean =
      chose ? static_cast<double>(t.blocks_chosen) / static_cast<double>(t.n_choices) : 0;
  return {{"local_attn_ms", ms(t.local_attn_ns)},
          {"sparse_attn_ms", ms(t.sparse_attn_ns)},
          {"summary_attn_ms", ms(t.summary_attn_ns)},
          {"kv_cache_ms", ms(t.kv_cache_ns)},
          {"other_ms", ms(t.other_ns)},
          {"sparse_attn_hit_rate", sparse_hit_rate(t)},
          {"topk_dynamics",
           {{"mean", mean},
            {"min", chose ? t.blocks_min : 0},
            {"max", t.blocks_max},
            {"reused", t.blocks_chosen_again}}}};
}

std::vector<std::string> timings_advice(const mri_timings& t) {
  const TimingShares shares = timing_shares(t);
  std::vector<std::string> advice;
  if (shares.local > kLocalShareMax) {
    advice.push_back(absl::StrFormat(
        "local attention takes %.0f %% of the time (more than %.0f %%): the window does work that "
        "choosing would save; lower attention.window_tokens and raise attention.top_k_blocks, or "
        "lower attention.dense_below_tokens; texts that short need no hybrid attention",
        100 * shares.local, 100 * kLocalShareMax));
  }
  if (shares.sparse > kSparseShareMax) {
    advice.push_back(absl::StrFormat(
        "sparse attention takes %.0f %% of the time (more than %.0f %%), and %.0f %% of the chosen "
        "blocks were chosen before too: the index misses; raise attention.reuse_steps, lower "
        "attention.candidates_percent or attention.top_k_blocks",
        100 * shares.sparse, 100 * kSparseShareMax, 100 * sparse_hit_rate(t)));
  }
  if (shares.kv_cache > kKvShareMax) {
    advice.push_back(absl::StrFormat(
        "the KV cache takes %.0f %% of the time (more than %.0f %%): hot is too large or warm "
        "compression is off; lower kv_tier.hot_tokens, set quantizer.plugin = \"int8\", or give "
        "more memory with runtime.kv_budget_mb so that blocks move less",
        100 * shares.kv_cache, 100 * kKvShareMax));
  }
  return advice;
}

}  // namespace varve
