#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "mri/kind/summary.h"
#include "tests/support/fake_host.h"

namespace varve::test {
namespace {

constexpr uint32_t kDim = 16;

class ClustersTest : public testing::Test {
 protected:
  // `n` tokens around `n_centres` well separated keys; the value of a token is its centre's number.
  void fill(uint32_t n, uint32_t n_centres) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<float> centres(n_centres * kDim);
    for (float& x : centres) x = 10 * normal(random);
    k_.clear();
    v_.clear();
    for (uint32_t t = 0; t < n; ++t) {
      const uint32_t centre = t % n_centres;
      for (uint32_t c = 0; c < kDim; ++c) {
        k_.push_back(centres[centre * kDim + c] + 0.1f * normal(random));
        v_.push_back(static_cast<float>(centre));
      }
    }
  }

  mri_status make(const FakeHost& host, const float* mass, uint32_t capacity = UINT32_MAX) {
    const auto& table = host.table<mri_summary_v1>(MRI_SUMMARY);
    const auto n = static_cast<uint32_t>(k_.size() / kDim);
    const uint32_t most = table.pairs_max(host.self(), n);
    out_k_.assign(most * kDim, NAN);
    out_v_.assign(most * kDim, NAN);
    log_count_.assign(most, NAN);
    auto req = sized<mri_summary_make_req>();
    req.k = k_.data();
    req.v = v_.data();
    req.mass = mass;
    req.seed = 11;
    req.n_tokens = n;
    req.head_dim = kDim;
    auto rsp = sized<mri_summary_make_rsp>();
    rsp.k = out_k_.data();
    rsp.v = out_v_.data();
    rsp.log_count = log_count_.data();
    rsp.pairs_capacity = std::min(most, capacity);
    const mri_status status = table.make(host.self(), &req, &rsp, nullptr);
    n_pairs_ = rsp.n_pairs;
    return status;
  }

  double tokens() const {
    double sum = 0;
    for (uint32_t p = 0; p < n_pairs_; ++p) sum += std::exp(double{log_count_[p]});
    return sum;
  }

  // The pair that is exactly token t, or n_pairs_.
  uint32_t pair_of(uint32_t t) const {
    for (uint32_t p = 0; p < n_pairs_; ++p) {
      if (std::equal(&k_[t * kDim], &k_[t * kDim] + kDim, &out_k_[p * kDim])) return p;
    }
    return n_pairs_;
  }

  std::vector<float> k_, v_, out_k_, out_v_, log_count_;
  uint32_t n_pairs_ = 0;
};

std::vector<mri_param> small() {
  return {param("heavy_tokens_per_segment", 4), param("clusters_per_segment", 8)};
}

TEST_F(ClustersTest, CountsSumToTheTokens) {
  const FakeHost host(CLUSTERS_PLUGIN, {});
  for (uint32_t n : {1u, 100u, 160u, 161u, 500u, 1024u}) {
    fill(n, 7);
    ASSERT_EQ(make(host, nullptr), MRI_OK);
    EXPECT_NEAR(tokens(), n, 0.01) << n;
    EXPECT_LE(n_pairs_, 160u);
  }
}

TEST_F(ClustersTest, FewTokensStayExact) {
  const FakeHost host(CLUSTERS_PLUGIN, {});
  fill(150, 3);
  ASSERT_EQ(make(host, nullptr), MRI_OK);
  ASSERT_EQ(n_pairs_, 150u);
  EXPECT_EQ(out_k_, k_);
  EXPECT_EQ(out_v_, v_);
  EXPECT_EQ(log_count_, std::vector<float>(150, 0.f));
}

TEST_F(ClustersTest, LikeKeysShareAPair) {
  const FakeHost host(CLUSTERS_PLUGIN, small());
  fill(512, 5);
  ASSERT_EQ(make(host, nullptr), MRI_OK);
  for (uint32_t p = 0; p < n_pairs_;
       ++p) {  // a mean of unlike keys would have a mean of unlike values
    EXPECT_NEAR(out_v_[p * kDim], std::round(out_v_[p * kDim]), 1e-4) << p;
  }
}

TEST_F(ClustersTest, UnusualKeysAreHeavyWithoutMass) {
  const FakeHost host(CLUSTERS_PLUGIN,
                      {param("heavy_tokens_per_segment", 2), param("clusters_per_segment", 1)});
  fill(512, 1);
  k_[77 * kDim + 3] += 5;
  k_[300 * kDim + 9] -= 5;
  v_[77 * kDim] = 7;
  ASSERT_EQ(make(host, nullptr), MRI_OK);
  ASSERT_EQ(n_pairs_, 3u);
  EXPECT_EQ(pair_of(77), 0u);
  EXPECT_EQ(pair_of(300), 1u);
  EXPECT_EQ(out_v_[0], 7);
  EXPECT_EQ(log_count_[0], 0.f);
  EXPECT_NEAR(log_count_[2], std::log(510.0), 1e-5);
}

TEST_F(ClustersTest, MassDecidesWhoIsHeavy) {
  const FakeHost host(CLUSTERS_PLUGIN, small());
  fill(512, 5);
  std::vector<float> mass(512, 0.001f);
  for (uint32_t t : {9u, 100u, 101u, 511u}) mass[t] = 0.1f;
  ASSERT_EQ(make(host, mass.data()), MRI_OK);
  for (uint32_t t : {9u, 100u, 101u, 511u}) EXPECT_LT(pair_of(t), 4u) << t;
  EXPECT_NEAR(tokens(), 512, 0.01);
}

TEST_F(ClustersTest, SameSeedSameAnswer) {
  const FakeHost host(CLUSTERS_PLUGIN, {});
  fill(1024, 200);
  ASSERT_EQ(make(host, nullptr), MRI_OK);
  const std::vector<float> first = out_k_;
  ASSERT_EQ(make(host, nullptr), MRI_OK);
  EXPECT_EQ(std::vector<float>(first.begin(), first.begin() + n_pairs_ * kDim),
            std::vector<float>(out_k_.begin(), out_k_.begin() + n_pairs_ * kDim));
}

TEST_F(ClustersTest, SurvivesKeysThatAreAlikeOrNotFinite) {
  const FakeHost host(CLUSTERS_PLUGIN, small());
  k_.assign(200 * kDim, 1);
  v_.assign(200 * kDim, 2);
  ASSERT_EQ(make(host, nullptr), MRI_OK);
  EXPECT_NEAR(tokens(), 200, 0.01);
  k_[50] = NAN;
  k_[500] = INFINITY;
  ASSERT_EQ(make(host, nullptr), MRI_OK);
  EXPECT_NEAR(tokens(), 200, 0.01);
}

TEST_F(ClustersTest, WorksWithoutClustersOrHeavyTokens) {
  const FakeHost heavy(CLUSTERS_PLUGIN, {param("clusters_per_segment", 0)});
  const FakeHost clusters(CLUSTERS_PLUGIN, {param("heavy_tokens_per_segment", 0)});
  fill(512, 5);
  ASSERT_EQ(make(heavy, nullptr), MRI_OK);
  EXPECT_EQ(n_pairs_, 128u);
  ASSERT_EQ(make(clusters, nullptr), MRI_OK);
  EXPECT_NEAR(tokens(), 512, 0.01);
}

TEST_F(ClustersTest, SaysHowMuchRoomIsNeeded) {
  const FakeHost host(CLUSTERS_PLUGIN, small());
  fill(512, 5);
  EXPECT_EQ(make(host, nullptr, 3), MRI_E_SPACE);
  EXPECT_EQ(n_pairs_, 12u);
}

}  // namespace
}  // namespace varve::test
