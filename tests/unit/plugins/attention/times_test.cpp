// What attention plugins say about their time when they are asked.
#include "tests/unit/plugins/attention/planned.h"

namespace varve::test {
namespace {

constexpr int kTopK = 6;

std::vector<mri_param> hybrid_params(int reuse_steps = 4) {
  return {param("window_tokens", 64), param("top_k_blocks", kTopK),
          param("dense_below_tokens", 256), param("dense_prompt_tokens", 0),
          param("reuse_steps", reuse_steps)};
}

mri_attn_times sized_times() {
  mri_attn_times times{};
  times.struct_size = sizeof(times);
  return times;
}

// One step with `times`, planned as often as a runtime does.
void step(KvText& text, Planned& attention, mri_attn_times* times) {
  text.req().times = times;
  attention.plan(text.req());
  ASSERT_EQ(attention.run(text.req()), MRI_OK);
}

TEST(AttentionTimesTest, DenseIsLocal) {
  KvText text(300, 1);
  text.request(100, 0);
  Planned dense(DENSE_PLUGIN, {});
  mri_attn_times times = sized_times();
  step(text, dense, &times);
  EXPECT_GT(times.local_ns, 0u);
  EXPECT_EQ(times.sparse_ns + times.summary_ns + times.n_choices, 0u);
}

TEST(AttentionTimesTest, HybridThatReadsAllIsLocal) {
  KvText text(200, 1);
  text.request(1, MRI_ATTN_SEQ_DECODE);
  Planned hybrid(HYBRID_PLUGIN, hybrid_params());
  mri_attn_times times = sized_times();
  step(text, hybrid, &times);
  EXPECT_GT(times.local_ns, 0u);
  EXPECT_EQ(times.sparse_ns + times.summary_ns + times.n_choices, 0u);
}

TEST(AttentionTimesTest, HybridTellsPartsApart) {
  for (const uint32_t concurrency : {1u, 3u}) {
    KvText text(5000, 1);
    text.request(1, MRI_ATTN_SEQ_DECODE);
    Planned hybrid(HYBRID_PLUGIN, hybrid_params(), concurrency);
    mri_attn_times times = sized_times();
    step(text, hybrid, &times);
    EXPECT_GT(times.local_ns, 0u);
    EXPECT_GT(times.sparse_ns, 0u);
    EXPECT_EQ(times.summary_ns, 0u) << "there are no summaries";
    text.add_summaries(4096);
    step(text, hybrid, &times);
    EXPECT_GT(times.summary_ns, 0u);
  }
}

TEST(AttentionTimesTest, HybridCountsTheChoicesOfAnAnswer) {
  for (const int reuse_steps : {1, 4}) {
    KvText text(5000, 1);
    text.request(1, MRI_ATTN_SEQ_DECODE);
    text.seq().context = 7;
    Planned hybrid(HYBRID_PLUGIN, hybrid_params(reuse_steps));
    mri_attn_times times = sized_times();
    step(text, hybrid, &times);
    EXPECT_EQ(times.n_choices, kKvHeads);
    EXPECT_EQ(times.blocks_chosen, kTopK * uint64_t{kKvHeads});
    EXPECT_EQ(times.blocks_min, uint64_t{kTopK});
    EXPECT_EQ(times.blocks_max, uint64_t{kTopK});
    EXPECT_EQ(times.blocks_chosen_again, 0u);
    step(text, hybrid, &times);  // the same query chooses the same
    EXPECT_EQ(times.n_choices, 2 * kKvHeads);
    EXPECT_EQ(times.blocks_chosen_again, kTopK * uint64_t{kKvHeads});
  }
}

TEST(AttentionTimesTest, HybridDoesNotCountWhatAPromptChose) {
  KvText text(5000, 1);
  text.request(100, 0);
  Planned hybrid(HYBRID_PLUGIN, hybrid_params());
  mri_attn_times times = sized_times();
  step(text, hybrid, &times);
  EXPECT_GT(times.sparse_ns, 0u);
  EXPECT_EQ(times.n_choices, 0u);
}

TEST(AttentionTimesTest, AStructThatIsTooShortStaysAsItIs) {
  KvText text(5000, 1);
  text.request(1, MRI_ATTN_SEQ_DECODE);
  for (const char* plugin : {DENSE_PLUGIN, HYBRID_PLUGIN}) {
    Planned attention(plugin, {});
    mri_attn_times times = sized_times();
    times.struct_size = 16;
    step(text, attention, &times);
    EXPECT_EQ(times.local_ns + times.sparse_ns, 0u);
  }
}

// Asking changes nothing: the same choice, the same result to the last bit.
TEST(AttentionTimesTest, AskingChangesNoResult) {
  for (const int reuse_steps : {1, 4}) {
    KvText asked(5000, 3), plain(5000, 3);
    for (KvText* text : {&asked, &plain}) {
      text->request(1, MRI_ATTN_SEQ_DECODE);
      text->add_summaries(4096);
      text->seq().context = 7;
      Planned hybrid(HYBRID_PLUGIN, hybrid_params(reuse_steps), 2);
      mri_attn_times times = sized_times();
      for (int i = 0; i < 2; ++i) step(*text, hybrid, text == &asked ? &times : nullptr);
    }
    for (uint32_t head = 0; head < kHeads; ++head) {
      EXPECT_EQ(asked.lse(0, head), plain.lse(0, head));
      for (uint32_t c = 0; c < kDim; ++c) EXPECT_EQ(asked.o(0, head)[c], plain.o(0, head)[c]);
    }
  }
}

}  // namespace
}  // namespace varve::test
