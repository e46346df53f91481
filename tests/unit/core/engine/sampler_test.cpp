#include "core/engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace varve {
namespace {

std::unique_ptr<Sampler> make(double temperature, double top_p, uint64_t seed) {
  SamplerOptions options;
  options.temperature = temperature;
  options.top_p = top_p;
  options.seed = seed;
  return *Sampler::make(options, {}, 0);
}

TEST(Sampler, TemperatureZeroTakesTheLikeliestAndTheLowerOfEquals) {
  const auto sampler = make(0, 1, 0);
  const std::vector<float> logits = {1, NAN, 3, 3, -INFINITY};
  EXPECT_EQ(*sampler->sample(logits), 2);
}

TEST(Sampler, RefusesLogitsWithoutAFiniteLargest) {
  const auto sampler = make(1, 1, 0);
  const std::vector<float> nans = {NAN, -INFINITY}, infinite = {0, INFINITY};
  EXPECT_FALSE(sampler->sample(nans).ok());
  EXPECT_FALSE(sampler->sample(infinite).ok());
  EXPECT_FALSE(sampler->sample({}).ok());
}

TEST(Sampler, DrawsWithTheProbabilitiesOfTheSoftmax) {
  const auto sampler = make(0.5, 1, 7);
  const std::vector<float> logits = {0.0f, NAN, 0.5f * std::log(3.0f)};  // 1 : 3 at temperature 0.5
  std::map<int32_t, int> count;
  for (int i = 0; i < 4000; ++i) ++count[*sampler->sample(logits)];
  EXPECT_EQ(count[1], 0);
  EXPECT_NEAR(count[2], 3000, 150);
}

TEST(Sampler, TopPKeepsTheFewestThatReachIt) {
  const std::vector<float> logits = {std::log(0.2f), std::log(0.5f), std::log(0.3f)};
  const auto two = make(1, 0.7, 1), one = make(1, 0, 1);
  for (int i = 0; i < 500; ++i) {
    EXPECT_NE(*two->sample(logits), 0);
    EXPECT_EQ(*one->sample(logits), 1);
  }
}

TEST(Sampler, SameSeedSameDraws) {
  const std::vector<float> logits(50, 0.0f);
  const auto a = make(1, 1, 42), b = make(1, 1, 42), c = make(1, 1, 43);
  int differing = 0;
  for (int i = 0; i < 20; ++i) {
    const int32_t token = *a->sample(logits);
    EXPECT_EQ(token, *b->sample(logits));
    if (token != *c->sample(logits)) ++differing;
  }
  EXPECT_GT(differing, 10);
}

}  // namespace
}  // namespace varve
