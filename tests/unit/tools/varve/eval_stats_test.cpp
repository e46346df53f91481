#include "tools/varve/eval_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace varve::cli {
namespace {

TEST(CompareLogits, IsZeroForEqualLogitsWhateverTheirOffset) {
  const std::vector<float> a = {1, 2, 3, -500}, b = {11, 12, 13, -490};
  const LogitsDifference difference = compare_logits(a, b, 1);
  EXPECT_NEAR(difference.kld, 0, 1e-12);
  EXPECT_NEAR(difference.delta_nll, 0, 1e-12);
  EXPECT_TRUE(difference.same_top);
}

TEST(CompareLogits, IsTheDivergenceOfTheReferenceFromTheCandidate) {
  // Probabilities 3/4, 1/4 against 1/4, 3/4 and against 1/2, 1/2.
  const std::vector<float> p = {std::log(3.0f), 0}, q = {0, std::log(3.0f)}, even = {7, 7};
  EXPECT_NEAR(compare_logits(p, q, 0).kld, 0.5 * std::log(3.0), 1e-7);
  EXPECT_NEAR(compare_logits(p, even, 0).kld, 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-7);
  EXPECT_NEAR(compare_logits(even, p, 0).kld, 0.5 * std::log(2 / 3.0) + 0.5 * std::log(2.0), 1e-7);
}

TEST(CompareLogits, LossIsOfTheNextTokenAndRisesWhenTheCandidateIsWorse) {
  const std::vector<float> p = {std::log(3.0f), 0}, q = {0, std::log(3.0f)};
  EXPECT_NEAR(compare_logits(p, q, 0).delta_nll, std::log(3.0), 1e-7);
  EXPECT_NEAR(compare_logits(p, q, 1).delta_nll, -std::log(3.0), 1e-7);
}

TEST(CompareLogits, TopIsTheFirstOfTheLargest) {
  EXPECT_TRUE(compare_logits(std::vector<float>{1, 1, 0}, std::vector<float>{2, 1, 0}, 0).same_top);
  EXPECT_FALSE(
      compare_logits(std::vector<float>{1, 1, 0}, std::vector<float>{1, 2, 0}, 0).same_top);
}

TEST(CompareLogits, NotANumberIsNotHidden) {
  const std::vector<float> good = {1, 2}, bad = {1, std::nanf("")};
  EXPECT_TRUE(std::isnan(compare_logits(good, bad, 0).kld));
}

TEST(Summarise, MeansAndTail) {
  std::vector<LogitsDifference> differences;
  for (int i = 1; i <= 200; ++i) differences.push_back({i / 100.0, i % 4 != 0, i == 1 ? 2.0 : 0.0});
  const Fidelity fidelity = summarise(differences);
  EXPECT_EQ(fidelity.positions, 200u);
  EXPECT_DOUBLE_EQ(fidelity.mean_kld, 1.005);
  EXPECT_DOUBLE_EQ(fidelity.p99_kld, 1.98);
  EXPECT_DOUBLE_EQ(fidelity.max_kld, 2.0);
  EXPECT_DOUBLE_EQ(fidelity.top1_agreement, 0.75);
  EXPECT_DOUBLE_EQ(fidelity.delta_nll, 0.01);
  EXPECT_EQ(summarise({}).mean_kld, 0);
}

TEST(Quantile, IsAValueOfTheList) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2);
  EXPECT_EQ(quantile({1, 2, 3}, 0), 1);
  EXPECT_EQ(quantile({1, 2, 3}, 1), 3);
  EXPECT_EQ(median({}), 0);
}

}  // namespace
}  // namespace varve::cli
