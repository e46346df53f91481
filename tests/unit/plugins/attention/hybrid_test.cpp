#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "tests/unit/plugins/attention/planned.h"

namespace varve::test {
namespace {

std::vector<mri_param> params(const char* positions, double summary_weight = 0.7) {
  return {param("window_tokens", 64),
          param("top_k_blocks", 6),
          param("sink_tokens", 32),
          param("dense_below_tokens", 256),
          param("dense_prompt_tokens", 0),
          param("tile_queries", 64),
          param("candidates_percent", 25),
          param("positions", positions),
          param("summary_weight", summary_weight)};
}

std::map<uint32_t, int32_t> distances(const std::vector<Read>& reads) {
  std::map<uint32_t, int32_t> all;
  for (const Read& r : reads)
    EXPECT_TRUE(all.emplace(r.index, r.distance).second) << "block twice: " << r.index;
  return all;
}

// Makes a token's key point where every query of the text looks.
void plant_needle(KvText& text, uint32_t kv_head, uint32_t token) {
  for (uint32_t c = 0; c < kDim; ++c) {
    const bool still = c % (kDim / 2) == kDim / 2 - 1;  // the pair that position hardly turns
    text.key(kv_head, token)[c] = still ? 40.f : 0.f;
    for (uint32_t row = 0; row < 600 && still; ++row) {
      for (uint32_t head = 0; head < kHeads; ++head) text.query(row, head)[c] = 3.f;
    }
  }
}

TEST(HybridTest, ReadsSinksWindowAndOwnBlocksOnce) {
  KvText text(2000, 1);
  const mri_attn_req& req = text.request(300, 0);
  Planned hybrid(HYBRID_PLUGIN, params("true"));
  hybrid.plan(req);
  for (const mri_attn_item& item : hybrid.items()) {
    const uint32_t first = text.seq().position + item.first_query,
                   last = first + item.n_queries - 1;
    const auto read = distances(reads(hybrid.entries(item.kv_head, item.first_query)));
    EXPECT_EQ(read.size(), 1 + 6 + 2 + last / 32 - first / 32 + 1);
    EXPECT_TRUE(read.count(0));
    for (uint32_t b = first / 32 - 2; b <= last / 32; ++b) EXPECT_TRUE(read.count(b)) << b;
    for (const auto& [block, distance] : read)
      EXPECT_EQ(distance, static_cast<int32_t>(first / 32) - static_cast<int32_t>(block));
  }
}

TEST(HybridTest, FindsThePlantedNeedlePerHead) {
  for (const char* positions : {"true", "compact"}) {
    KvText text(3000, 2, 0.3f);
    plant_needle(text, 0, 1000);
    plant_needle(text, 1, 1700);
    const mri_attn_req& req = text.request(130, 0);
    Planned hybrid(HYBRID_PLUGIN, params(positions));
    hybrid.plan(req);
    for (const mri_attn_item& item : hybrid.items()) {
      const auto read = distances(reads(hybrid.entries(item.kv_head, item.first_query)));
      EXPECT_TRUE(read.count(item.kv_head == 0 ? 1000 / 32 : 1700 / 32)) << positions;
    }
  }
}

// Blocks whose keys cancel out look large to the bound; the sketch sees each key.
TEST(HybridTest, RanksByTheSketchNotByTheBound) {
  KvText text(700, 9, 0.3f);
  plant_needle(text, 0, 300);
  for (uint32_t block = 2; block < 9; ++block) {
    for (uint32_t t = block * 32; t < block * 32 + 32; ++t) {
      text.key(0, t)[kDim / 2 - 1] = t % 2 == 0 ? 60.f : -60.f;
      text.key(0, t)[kDim - 1] = t % 2 == 0 ? -60.f : 60.f;
    }
  }
  const mri_attn_req& req = text.request(1, MRI_ATTN_SEQ_DECODE);
  Planned hybrid(HYBRID_PLUGIN, params("true"));
  hybrid.plan(req);
  EXPECT_TRUE(distances(reads(hybrid.entries(0, 0))).count(300 / 32));
}

TEST(HybridTest, TakesHintsAlways) {
  KvText text(3000, 3);
  const mri_attn_req& req = text.request(1, MRI_ATTN_SEQ_DECODE);
  const uint32_t hints[] = {50, 17, 50, 4000000};
  text.seq().hints = hints;
  text.seq().n_hints = 4;
  Planned hybrid(HYBRID_PLUGIN, params("true"));
  hybrid.plan(req);
  const auto read = distances(reads(hybrid.entries(0, 0)));
  EXPECT_TRUE(read.count(17));
  EXPECT_TRUE(read.count(50));
}

TEST(HybridTest, CompactDistancesFallByOneWithoutGaps) {
  KvText text(3000, 4);
  const mri_attn_req& req = text.request(1, MRI_ATTN_SEQ_DECODE);
  text.block(92).flags |= MRI_BLOCK_EVICTED;
  text.req().trained_tokens = 1024;  // "auto" turns compact beyond
  Planned hybrid(HYBRID_PLUGIN, params("auto"));
  hybrid.plan(req);
  const auto read = reads(hybrid.entries(1, 0));
  ASSERT_EQ(read.size(), 1u + 6 + 2);
  for (size_t i = 0; i + 1 < read.size(); ++i) {
    EXPECT_GT(read[i].distance, read[i + 1].distance);
    EXPECT_LT(read[i].index, read[i + 1].index);
  }
  EXPECT_EQ(read.front().distance, 9);  // block 92, one before the query's, is gone
  EXPECT_EQ(read[6].distance, 3);
  EXPECT_EQ(read[7].distance, 2);
  EXPECT_EQ(read[8].distance, 0);
}

// The second piece of a tile reads what the first one chose, and what has left the window since.
TEST(HybridTest, PiecesOfATileShareOneChoice) {
  KvText text(3000, 7);
  const mri_attn_req& whole = text.request(200, 0);
  Planned hybrid(HYBRID_PLUGIN, params("true"));
  mri_attn_seq seq = whole.seqs[0];
  mri_attn_req req = whole;
  req.seqs = &seq;
  const auto chosen = [&](uint32_t position, uint64_t context) {
    seq.first_row = position - whole.seqs[0].position;
    seq.position = position;
    seq.n_queries = 16;
    seq.context = context;
    hybrid.plan(req);
    return distances(reads(hybrid.entries(0, 0)));
  };
  const auto first = chosen(2816, 5);  // a multiple of the tile
  const auto second = chosen(2864, 5);
  const auto other = chosen(2864, 6), next_tile = chosen(2880, 5);
  const auto window = [](uint32_t block) { return block >= 2816 / 32 - 2; };
  size_t n_same = 0, n_other = 0;
  for (const auto& [block, distance] : first) {
    n_same += second.count(block);
    n_other += other.count(block);
  }
  EXPECT_EQ(n_same, first.size());
  EXPECT_LT(n_other, first.size());
  EXPECT_EQ(std::count_if(second.begin(), second.end(), [&](auto& r) { return window(r.first); }),
            4);  // 2 of the window, the tile's own 2
  EXPECT_EQ(next_tile.size(), 1u + 6 + 2 + 1);
}

// A prompt's piece beside answers: no thread may have to read it alone.
TEST(HybridTest, CutsTheListOfAPromptBesideAnswers) {
  KvText text(3000, 8);
  const mri_attn_req& prompt = text.request(17, 0);
  std::vector<mri_attn_seq> seqs(5, prompt.seqs[0]);
  for (uint32_t i = 0; i < 5; ++i) {
    seqs[i].n_queries = i < 4 ? 1 : 13;
    seqs[i].first_row = i;
    seqs[i].flags = i < 4 ? MRI_ATTN_SEQ_DECODE : 0;
    if (i < 4) seqs[i].position = 500;
  }
  mri_attn_req req = prompt;
  req.seqs = seqs.data();
  req.n_seqs = 5;
  std::vector<mri_param> dense = params("true");
  for (mri_param& p : dense) {
    if (std::string(p.key) == "dense_below_tokens") p.int_value = 9000;
  }
  Planned hybrid(HYBRID_PLUGIN, dense, 2);
  hybrid.plan(req);
  size_t n_of[5] = {};
  for (const mri_attn_item& item : hybrid.items()) ++n_of[item.seq];
  for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(n_of[i], (i < 4 ? 1 : 2) * kKvHeads) << i;
}

TEST(HybridTest, ShortContextsAndTheLastTileAreDense) {
  KvText text(1000, 5);
  const mri_attn_req& req = text.request(1000, MRI_ATTN_SEQ_PROMPT_END);
  Planned hybrid(HYBRID_PLUGIN, params("auto"));
  hybrid.plan(req);
  for (const mri_attn_item& item : hybrid.items()) {
    const uint32_t end = item.first_query + item.n_queries;
    const size_t n = reads(hybrid.entries(item.kv_head, item.first_query)).size();
    if (end <= 256 || end == 1000) {
      EXPECT_EQ(n, (end + 31) / 32) << end;
    } else if (end > 416) {
      EXPECT_EQ(n, 1u + 6 + 2 + 2) << end;
    }
  }
}

TEST(HybridTest, APromptIsReadInFullUpToItsLimitButAnAnswerIsNot) {
  std::vector<mri_param> dense_prompt = params("auto");
  for (mri_param& p : dense_prompt) {
    if (std::string(p.key) == "dense_prompt_tokens") p.int_value = 900;
  }
  KvText prompt(1000, 5), answer(900, 5);
  Planned hybrid(HYBRID_PLUGIN, dense_prompt);
  hybrid.plan(prompt.request(600, 0));
  for (const mri_attn_item& item : hybrid.items()) {
    const uint32_t end = 400 + item.first_query + item.n_queries;
    const size_t n = reads(hybrid.entries(item.kv_head, item.first_query)).size();
    EXPECT_EQ(n == (end + 31) / 32, end <= 900) << end;
  }
  hybrid.plan(answer.request(1, MRI_ATTN_SEQ_DECODE));
  EXPECT_EQ(reads(hybrid.entries(0, 0)).size(), 1u + 6 + 2 + 1);
}

TEST(HybridTest, TheLastTileIsNotDenseBeyondTheTrainedLength) {
  KvText text(1000, 5);
  const mri_attn_req& req = text.request(40, MRI_ATTN_SEQ_PROMPT_END);
  text.req().trained_tokens = 900;
  Planned hybrid(HYBRID_PLUGIN, params("auto"));
  hybrid.plan(req);
  EXPECT_EQ(reads(hybrid.entries(0, 0)).size(), 1u + 6 + 2 + 2);
}

TEST(HybridTest, SummariesStandForWhatIsNotRead) {
  KvText text(5000, 6);
  const mri_attn_req& req = text.request(1, MRI_ATTN_SEQ_DECODE);
  text.add_summaries(5000);  // of 4 segments; all end before the window
  Planned hybrid(HYBRID_PLUGIN, params("true"));
  hybrid.plan(req);
  const auto entries = hybrid.entries(0, 0);
  const auto blocks = reads(entries);
  const auto summaries = reads(entries, MRI_ATTN_SUMMARY);
  ASSERT_EQ(summaries.size(), 4u);
  for (const Read& s : summaries)
    EXPECT_EQ(s.distance, 4999 / 32 - static_cast<int32_t>(s.index) * 32);
  for (const mri_attn_entry& e : entries) {
    if (e.what != MRI_ATTN_SUMMARY) continue;
    const auto n_read = std::count_if(blocks.begin(), blocks.end(),
                                      [&](const Read& r) { return r.index / 32 == e.index; });
    EXPECT_NEAR(e.log_weight, std::log(0.7 * static_cast<double>(32 - n_read) / 32), 1e-5);
  }

  Planned without(HYBRID_PLUGIN, params("true", 0.0));
  without.plan(req);
  EXPECT_TRUE(reads(without.entries(0, 0), MRI_ATTN_SUMMARY).empty());

  Planned compact(HYBRID_PLUGIN, params("compact"));
  compact.plan(req);
  for (const Read& s : reads(compact.entries(0, 0), MRI_ATTN_SUMMARY)) EXPECT_EQ(s.distance, 32);
}

TEST(HybridTest, SummariesLieBeforeTheWindow) {
  KvText text(4120, 6);
  const mri_attn_req& req = text.request(1, MRI_ATTN_SEQ_DECODE);
  text.add_summaries(4120);  // of 4 segments; the window begins inside the last one
  Planned hybrid(HYBRID_PLUGIN, params("true"));
  hybrid.plan(req);
  EXPECT_EQ(reads(hybrid.entries(0, 0), MRI_ATTN_SUMMARY).size(), 3u);
}

void expect_exact_when_all_is_chosen(uint32_t n_tokens, uint32_t n_queries, const char* positions) {
  KvText text(n_tokens, 7);
  const mri_attn_req& req = text.request(n_queries, 0);
  const bool gap = std::string(positions) == "true";  // compact positions would close it
  if (gap) text.block(5).flags |= MRI_BLOCK_EVICTED;
  Planned hybrid(HYBRID_PLUGIN,
                 {param("top_k_blocks", 64), param("dense_below_tokens", 0),
                  param("dense_prompt_tokens", 0), param("positions", positions)},
                 2);
  hybrid.plan(req);
  ASSERT_EQ(hybrid.run(req), MRI_OK);
  std::vector<double> expected;
  for (uint32_t row = 0; row < n_queries; ++row) {
    for (uint32_t head = 0; head < kHeads; ++head) {
      EXPECT_NEAR(text.lse(row, head), text.exact(row, head, expected), 1e-4);
      for (uint32_t c = 0; c < kDim; ++c) ASSERT_NEAR(text.o(row, head)[c], expected[c], 1e-4);
    }
  }
}

TEST(HybridTest, IsExactWhenTheChoiceHoldsAll) {
  for (const char* positions : {"true", "compact"}) {
    expect_exact_when_all_is_chosen(700, 90, positions);
    expect_exact_when_all_is_chosen(2200, 3, positions);  // long enough to be cut into parts
  }
}

// What run() writes is attention over the planned set, however it was cut into parts.
TEST(HybridTest, RunEqualsAttentionOverTheChosenSet) {
  for (const char* positions : {"true", "compact"}) {
    KvText text(5000, 8);
    const mri_attn_req& req = text.request(3, 0);
    text.add_summaries(4096);
    auto wide = params(positions);
    wide[1] = param("top_k_blocks", 90);
    Planned hybrid(HYBRID_PLUGIN, wide, 3);
    hybrid.plan(req);
    EXPECT_GT(hybrid.items().size(), kKvHeads);
    ASSERT_EQ(hybrid.run(req), MRI_OK);
    for (uint32_t h = 0; h < kKvHeads; ++h) {
      const auto entries = hybrid.entries(h, 0);
      const mri_attn_item item{0, h, 0, 3, 0, 0, 0, 0};
      std::vector<float> o(3 * 2 * kDim), lse(3 * 2);
      ASSERT_EQ(ref_kernels().attend(nullptr, &req, &item, entries.data(), entries.size(), o.data(),
                                     2 * kDim, lse.data(), 2),
                MRI_OK);
      for (uint32_t row = 0; row < 3; ++row) {
        for (uint32_t g = 0; g < 2; ++g) {
          EXPECT_NEAR(text.lse(row, 2 * h + g), lse[row * 2 + g], 1e-4);
          for (uint32_t c = 0; c < kDim; ++c) {
            EXPECT_NEAR(text.o(row, 2 * h + g)[c], o[(row * 2 + g) * kDim + c], 1e-4);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace varve::test
