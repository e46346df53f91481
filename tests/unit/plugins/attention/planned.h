// planned.h: an attention plugin in a fake host, with room for its plan.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_host.h"
#include "tests/unit/plugins/attention/kv_text.h"

namespace varve::test {

class Planned {
 public:
  Planned(const char* library, std::vector<mri_param> params, uint32_t concurrency = 1)
      : host_(library, std::move(params), concurrency),
        table_(host_.table<mri_attention_v1>(MRI_ATTENTION)) {}

  // Plans as a runtime does: first without room, then with what was asked for.
  void plan(const mri_attn_req& req) {
    plan_ = sized<mri_attn_plan>();
    ASSERT_EQ(table_.plan(host_.self(), &req, &plan_, nullptr), MRI_E_SPACE);
    items_.resize(plan_.n_items);
    entries_.resize(plan_.n_entries);
    plan_ = sized<mri_attn_plan>();
    plan_.items = items_.data();
    plan_.entries = entries_.data();
    plan_.items_capacity = items_.size();
    plan_.entries_capacity = entries_.size();
    ASSERT_EQ(table_.plan(host_.self(), &req, &plan_, nullptr), MRI_OK);
    ASSERT_LE(plan_.n_items, items_.size());
    ASSERT_LE(plan_.n_entries, entries_.size());
    items_.resize(plan_.n_items);
    entries_.resize(plan_.n_entries);
  }

  mri_status run(const mri_attn_req& req) {
    return table_.run(host_.self(), &req, &plan_, nullptr);
  }

  const std::vector<mri_attn_item>& items() const { return items_; }

  // Entries of all items of (KV head, first query), in order.
  std::vector<mri_attn_entry> entries(uint32_t kv_head, uint32_t first_query) const {
    std::vector<mri_attn_entry> all;
    for (const mri_attn_item& item : items_) {
      if (item.kv_head != kv_head || item.first_query != first_query) continue;
      const auto begin = entries_.begin() + item.first_entry;
      all.insert(all.end(), begin, begin + item.n_entries);
    }
    return all;
  }

 private:
  FakeHost host_;
  const mri_attention_v1& table_;
  mri_attn_plan plan_;
  std::vector<mri_attn_item> items_;
  std::vector<mri_attn_entry> entries_;
};

// A block or summary that a list reads.
struct Read {
  uint32_t index;
  int32_t distance;
};

// `what` of `entries`, runs taken apart.
inline std::vector<Read> reads(const std::vector<mri_attn_entry>& entries,
                               uint32_t what = MRI_ATTN_BLOCKS) {
  std::vector<Read> all;
  const int32_t step = what == MRI_ATTN_BLOCKS ? 1 : MRI_SEGMENT_TOKENS / MRI_BLOCK_TOKENS;
  for (const mri_attn_entry& e : entries) {
    if (e.what != what) continue;
    for (uint32_t i = 0; i < e.count; ++i)
      all.push_back({e.index + i, e.distance - step * static_cast<int32_t>(i)});
  }
  return all;
}

}  // namespace varve::test
