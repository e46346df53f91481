#include <cmath>

#include "tests/unit/plugins/attention/planned.h"

namespace varve::test {
namespace {

// Queries that start inside a block, two heads, several tiles, one evicted block: all equal to the
// plain definition.
void expect_exact(uint32_t n_tokens, uint32_t n_queries, uint32_t concurrency) {
  KvText text(n_tokens, 1);
  const mri_attn_req& req = text.request(n_queries, 0);
  text.block(2).flags |= MRI_BLOCK_EVICTED;
  Planned dense(DENSE_PLUGIN, {param("tile_queries", 64)}, concurrency);
  dense.plan(req);
  ASSERT_EQ(dense.run(req), MRI_OK);
  std::vector<double> expected;
  for (uint32_t row = 0; row < n_queries; ++row) {
    for (uint32_t head = 0; head < kHeads; ++head) {
      const double lse = text.exact(row, head, expected);
      ASSERT_NEAR(text.lse(row, head), lse, 1e-4) << row << ' ' << head;
      for (uint32_t c = 0; c < kDim; ++c)
        ASSERT_NEAR(text.o(row, head)[c], expected[c], 1e-4) << row;
    }
  }
}

TEST(DenseTest, EqualsTheDefinition) { expect_exact(300, 205, 1); }
TEST(DenseTest, EqualsTheDefinitionForOneQuery) { expect_exact(300, 1, 1); }
TEST(DenseTest, MergesThePartsOfALongDecode) { expect_exact(4100, 1, 4); }
TEST(DenseTest, MergesThePartsOfAFewQueries) { expect_exact(2500, 37, 3); }

TEST(DenseTest, TilesStartAtBlockBoundaries) {
  KvText text(333, 1);
  const mri_attn_req& req = text.request(250, 0);
  Planned dense(DENSE_PLUGIN, {param("tile_queries", 100)});
  dense.plan(req);
  uint32_t covered = 0;
  for (const mri_attn_item& item : dense.items()) {
    const uint32_t position = text.seq().position + item.first_query;
    EXPECT_LE(position % 32 + item.n_queries, 96u);
    EXPECT_TRUE(item.first_query == 0 || position % 32 == 0) << item.first_query;
    covered += item.n_queries;
  }
  EXPECT_EQ(covered, 250 * kKvHeads);
}

TEST(DenseTest, CutsLongDecodesForAllCores) {
  KvText text(32 * 128, 1);
  const mri_attn_req& req = text.request(1, MRI_ATTN_SEQ_DECODE);
  Planned dense(DENSE_PLUGIN, {}, 2);
  dense.plan(req);
  EXPECT_EQ(dense.items().size(), 2 * kKvHeads);
  EXPECT_EQ(reads(dense.entries(0, 0)).size(), 128u);
}

TEST(DenseTest, ReadsNothingWhenAllIsEvicted) {
  KvText text(64, 1);
  const mri_attn_req& req = text.request(1, 0);
  for (uint32_t b = 0; b < 2; ++b) text.block(b).flags |= MRI_BLOCK_EVICTED;
  Planned dense(DENSE_PLUGIN, {});
  dense.plan(req);
  ASSERT_EQ(dense.run(req), MRI_OK);
  EXPECT_EQ(text.lse(0, 0), -INFINITY);
  EXPECT_EQ(text.o(0, 0)[0], 0.f);
}

}  // namespace
}  // namespace varve::test
