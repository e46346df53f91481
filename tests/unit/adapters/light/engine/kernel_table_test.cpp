// What the kernel table does with requests that a plugin got wrong.
#include "adapters/light/kernel_table.h"

#include <gtest/gtest.h>

#include <climits>
#include <cmath>

#include "tests/unit/adapters/light/engine/cache_fixture.h"

namespace varve::light {
namespace {

class KernelTableTest : public CacheFixture {
 protected:
  KernelTableTest() : q_(kHeads * kDim, 0.5f), o_(q_.size()), lse_(kHeads) {
    cache_ = std::make_unique<KvCache>(store(), 0, std::span<const mri_token_range>());
    write(*cache_, 3 * kBlock);
    const mri_rope& r = rope_.rope();
    runtime_.store = &store();
    runtime_.compute = kernels::Compute::kF32;
    runtime_.rope = {r.fine_cos, r.fine_sin, r.coarse_cos, r.coarse_sin,
                     r.n_fine,   r.n_coarse, r.head_dim,   r.rotary_dim};
    seq_.blocks = cache_->blocks().data();
    seq_.n_blocks = 3;
    seq_.n_queries = 1;
    seq_.position = 3 * kBlock - 1;
    req_.hdr.struct_size = sizeof(req_);
    req_.seqs = &seq_;
    req_.n_seqs = 1;
    req_.rope = &r;
    req_.q = q_.data();
    req_.n_heads = req_.n_kv_heads = kHeads;
    req_.head_dim = kDim;
    req_.scale = 1;
    req_.runtime = &runtime_;
    item_.n_queries = 1;
  }

  mri_status attend(mri_attn_entry entry) {
    const mri_kernels_v1& table = *kernel_table();
    return table.attend(table.self, &req_, &item_, &entry, 1, o_.data(), kDim, lse_.data(), 1);
  }
  mri_status score(uint32_t block, int32_t distance, uint32_t how = MRI_SCORE_SKETCH,
                   uint32_t step = 1) {
    const mri_kernels_v1& table = *kernel_table();
    float score = 0;
    return table.score_blocks(table.self, &req_, &item_, how, &block, &distance, 1, step, &score);
  }

  std::unique_ptr<KvCache> cache_;
  std::vector<float> q_, o_, lse_;
  AttentionRuntime runtime_{};
  mri_attn_seq seq_{};
  mri_attn_req req_{};
  mri_attn_item item_{};
};

TEST_F(KernelTableTest, AttendRefusesWhatDoesNotExist) {
  EXPECT_EQ(attend({MRI_ATTN_BLOCKS, 0, 3, 2, 0}), MRI_OK);
  EXPECT_TRUE(std::isfinite(lse_[0]));
  EXPECT_EQ(attend({MRI_ATTN_BLOCKS, 0, 4, 3, 0}), MRI_E_ARG);
  EXPECT_EQ(attend({MRI_ATTN_BLOCKS, UINT32_MAX, 1, 2, 0}), MRI_E_ARG);
  EXPECT_EQ(attend({MRI_ATTN_BLOCKS, 1, UINT32_MAX, 2, 0}), MRI_E_ARG);
  EXPECT_EQ(attend({MRI_ATTN_BLOCKS, 0, 1, INT_MIN, 0}), MRI_E_ARG);
  EXPECT_EQ(attend({MRI_ATTN_BLOCKS, 0, 1, INT_MAX, 0}), MRI_E_ARG);
  EXPECT_EQ(attend({MRI_ATTN_SUMMARY, 0, 1, 2, 0}), MRI_E_ARG);
  EXPECT_EQ(attend({MRI_ATTN_BLOCKS, 0, 0, 0, 0}), MRI_OK);
  EXPECT_EQ(lse_[0], -INFINITY);
  item_.kv_head = kHeads;
  EXPECT_EQ(attend({MRI_ATTN_BLOCKS, 0, 3, 2, 0}), MRI_E_ARG);
  item_.kv_head = 0;
  item_.n_queries = UINT32_MAX;
  EXPECT_EQ(attend({MRI_ATTN_BLOCKS, 0, 3, 2, 0}), MRI_E_ARG);
  item_.n_queries = 1;
  req_.runtime = nullptr;
  EXPECT_EQ(attend({MRI_ATTN_BLOCKS, 0, 3, 2, 0}), MRI_E_ARG);
}

TEST_F(KernelTableTest, ScoringRefusesBlocksWithoutIndex) {
  EXPECT_EQ(score(1, 1), MRI_OK);
  EXPECT_EQ(score(3, 1), MRI_E_ARG);
  EXPECT_EQ(score(1, INT_MIN), MRI_E_ARG);
  EXPECT_EQ(score(1, 1, 9), MRI_E_ARG);
  EXPECT_EQ(score(1, 1, MRI_SCORE_RADIUS, 0), MRI_E_ARG);
  const mri_token_range range{kBlock, kBlock};
  cache_->evict(std::span(&range, 1), MRI_EVICT_BLOCK);
  EXPECT_EQ(score(1, 1), MRI_E_ARG);
  EXPECT_EQ(attend({MRI_ATTN_BLOCKS, 0, 3, 2, 0}), MRI_OK);  // read as nothing
}

TEST_F(KernelTableTest, AProductThatCannotBeMadeIsNoException) {
  const mri_kernels_v1& table = *kernel_table();
  const float a[2] = {1, 2}, b[2] = {3, 4};
  float c[1] = {7};
  table.matmul_nt(table.self, 1, 1, 2, a, b, c);
  EXPECT_EQ(c[0], 11);
  table.matmul_nt(table.self, 1, 1, 0, a, b, c);
  EXPECT_EQ(c[0], 0);
  table.matmul_nt(table.self, 1, 1, UINT64_MAX / 8, a, b, c);
  EXPECT_TRUE(std::isnan(c[0]));
}

}  // namespace
}  // namespace varve::light
