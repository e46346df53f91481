// top_k: both forms on scores with ties, infinities and NaN.
#include "kernels/top_k.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu_target.h"
#include "tests/numeric/page_scene.h"

namespace varve::kernels {
namespace {

using Places = std::vector<uint32_t>;

Places top_k_of(decltype(ref::top_k)* top_k, const std::vector<float>& scores, size_t k) {
  Places out(k + 1, 777);
  const size_t n = top_k(scores.data(), scores.size(), k, out.data());
  EXPECT_EQ(n, std::min(k, scores.size()));
  EXPECT_EQ(out[n], 777u) << "wrote past its end";
  out.resize(n);
  return out;
}

TEST(TopK, GivesPlacesInRisingOrderAndLowerPlacesFirst) {
  for (const auto top_k : {ref::top_k, cpu::top_k}) {
    EXPECT_EQ(top_k_of(top_k, {3, 1, 4, 1, 5}, 3), (Places{0, 2, 4}));
    EXPECT_EQ(top_k_of(top_k, {2, 2, 2, 2}, 2), (Places{0, 1}));
    EXPECT_EQ(top_k_of(top_k, {0.0f, -0.0f, 0.0f}, 2), (Places{0, 1}));
    EXPECT_EQ(top_k_of(top_k, {NAN, 1, -INFINITY, -5}, 3), (Places{0, 1, 3}));
    EXPECT_EQ(top_k_of(top_k, {-INFINITY, NAN, -NAN, 1}, 3), (Places{0, 1, 3}));
    EXPECT_EQ(top_k_of(top_k, {1, INFINITY}, 1), (Places{1}));
    EXPECT_EQ(top_k_of(top_k, {1, 2}, 5), (Places{0, 1}));
    EXPECT_EQ(top_k_of(top_k, {1, 2}, 0), Places{});
    EXPECT_EQ(top_k_of(top_k, {}, 3), Places{});
  }
}

TEST(TopK, CpuEqualsRefOnRandomScores) {
  std::mt19937 random(1);
  for (const std::string_view target : kTargetNames) {
    if (!set_cpu_target(target)) continue;
    for (const size_t n : {1, 2, 15, 16, 17, 100, 513, 4096}) {
      for (const size_t k : {size_t{1}, n / 4, n / 2, n - 1, n}) {
        for (const float coarse : {1e6f, 3.0f}) {  // the second makes many ties
          std::normal_distribution<float> normal;
          std::vector<float> scores(n);
          for (float& x : scores) x = std::round(normal(random) * coarse) / coarse;
          if (n > 20) scores[7] = NAN, scores[9] = -INFINITY;
          ASSERT_EQ(top_k_of(cpu::top_k, scores, k), top_k_of(ref::top_k, scores, k))
              << target << " n " << n << " k " << k << " coarse " << coarse;
        }
      }
    }
  }
  set_cpu_target("best");
}

}  // namespace
}  // namespace varve::kernels
