#include <cstdint>
#include <vector>

#include "mri/ext/kernels.h"
#include "mri/sdk/testing.hpp"

namespace {

using mri::testing::Plugin;

constexpr uint32_t kHeads = 4, kKvHeads = 2, kHeadDim = 8, kNone = UINT32_MAX;

// What the kernels were asked to read, by KV head; they write nothing.
struct Read {
  uint32_t query, block;
  int32_t distance;
  bool operator==(const Read&) const = default;
};
std::vector<Read> reads[kKvHeads];

mri_status note_reads(void*, const mri_attn_req*, const mri_attn_item* item,
                      const mri_attn_entry* entries, uint64_t n_entries, float*, uint64_t, float*,
                      uint64_t) {
  for (uint64_t e = 0; e < n_entries; ++e) {
    for (uint32_t i = 0; i < entries[e].count; ++i) {
      for (uint32_t q = 0; q < item->n_queries; ++q) {
        reads[item->kv_head].push_back({item->first_query + q, entries[e].index + i,
                                        entries[e].distance - static_cast<int32_t>(i)});
      }
    }
  }
  return MRI_OK;
}

// Queries [first, first + n) of a text of n_blocks blocks; `evicted` is gone. Sinks of 4 tokens,
// which is one block, and a window of 64.
const std::vector<Read>& attend(uint32_t n_blocks, uint32_t first, uint32_t n,
                                uint32_t evicted = kNone) {
  mri_kernels_v1 kernels{};
  kernels.struct_size = sizeof(kernels);
  kernels.attend = note_reads;
  const Plugin plugin({{"sink_tokens", int64_t{4}}, {"window_tokens", int64_t{64}}},
                      {{MRI_KERNELS, &kernels}});
  const auto& attention = plugin.table<mri_attention_v1>(MRI_ATTENTION);

  std::vector<mri_kv_block> blocks(n_blocks);
  if (evicted != kNone) blocks[evicted].flags = MRI_BLOCK_EVICTED;
  mri_attn_seq seq{};
  seq.blocks = blocks.data();
  seq.n_blocks = n_blocks;
  seq.position = first;
  seq.n_queries = n;
  std::vector<float> o(n * kHeads * kHeadDim), lse(n * kHeads);
  auto req = mri::testing::sized<mri_attn_req>();
  req.seqs = &seq;
  req.n_seqs = 1;
  req.o = o.data();
  req.lse = lse.data();
  req.n_heads = kHeads;
  req.n_kv_heads = kKvHeads;
  req.head_dim = kHeadDim;

  auto plan = mri::testing::sized<mri_attn_plan>();
  MRI_CHECK(attention.plan(plugin.self(), &req, &plan, nullptr) == MRI_E_SPACE);
  std::vector<mri_attn_item> items(plan.n_items);
  std::vector<mri_attn_entry> entries(plan.n_entries);
  plan.items = items.data();
  plan.items_capacity = items.size();
  plan.entries = entries.data();
  plan.entries_capacity = entries.size();
  MRI_CHECK(attention.plan(plugin.self(), &req, &plan, nullptr) == MRI_OK);
  for (std::vector<Read>& list : reads) list.clear();
  MRI_CHECK(attention.run(plugin.self(), &req, &plan, nullptr) == MRI_OK);
  MRI_CHECK(reads[0] == reads[1]);
  return reads[0];
}

void a_short_text_is_read_whole_at_true_positions() {
  MRI_CHECK(attend(4, 3 * 32 + 5, 1) ==
            (std::vector<Read>{{0, 0, 3}, {0, 1, 2}, {0, 2, 1}, {0, 3, 0}}));
}

// In a text of 10 blocks a query of block 9 reads the sinks as if they stood before block 7.
void a_long_text_is_sinks_and_window_without_a_gap() {
  MRI_CHECK(attend(10, 9 * 32, 1) ==
            (std::vector<Read>{{0, 0, 3}, {0, 7, 2}, {0, 8, 1}, {0, 9, 0}}));
}

void distances_stay_the_same_however_long_the_text_is() {
  const std::vector<Read> far = attend(1000, 999 * 32 + 31, 1);
  MRI_CHECK(far.size() == 4 && far[0] == (Read{0, 0, 3}) && far[1] == (Read{0, 997, 2}));
}

// 40 queries from token 126 on, in blocks 3, 4 and 5: each reads its own window, once.
void every_query_of_a_prompt_has_its_own_window() {
  const std::vector<Read>& all = attend(6, 126, 40);
  for (uint32_t query = 0; query < 40; ++query) {
    const uint32_t own = (126 + query) / MRI_BLOCK_TOKENS;
    std::vector<Read> read;
    for (const Read& one : all) {
      if (one.query == query) read.push_back(one);
    }
    MRI_CHECK(read ==
              (std::vector<Read>{
                  {query, 0, 3}, {query, own - 2, 2}, {query, own - 1, 1}, {query, own, 0}}));
  }
}

void evicted_blocks_are_not_read() {
  MRI_CHECK(attend(10, 9 * 32, 1, 8) == (std::vector<Read>{{0, 0, 3}, {0, 7, 2}, {0, 9, 0}}));
  MRI_CHECK(attend(10, 9 * 32, 1, 4).size() == 4);
}

}  // namespace

int main() {
  a_short_text_is_read_whole_at_true_positions();
  a_long_text_is_sinks_and_window_without_a_gap();
  distances_stay_the_same_however_long_the_text_is();
  every_query_of_a_prompt_has_its_own_window();
  evicted_blocks_are_not_read();
  return mri::testing::result();
}
