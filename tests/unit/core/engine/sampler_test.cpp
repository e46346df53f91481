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

// 0.5, 0.3 and 0.2: the first two reach 0.7, however temperature changes them afterwards.
TEST(Sampler, TopPIsOfTheModelsOwnDistribution) {
  const std::vector<float> logits = {std::log(0.2f), std::log(0.5f), std::log(0.3f)};
  const auto hot = make(50, 0.7, 1), cold = make(0.2, 0.7, 1);
  std::map<int32_t, int> of_hot, of_cold;
  for (int i = 0; i < 2000; ++i) {
    ++of_hot[*hot->sample(logits)];
    ++of_cold[*cold->sample(logits)];
  }
  EXPECT_EQ(of_hot[0] + of_cold[0], 0);
  EXPECT_NEAR(of_hot[2], 1000, 150);
  EXPECT_NEAR(of_cold[2], 2000 * 0.072, 60);  // (3/5)^5 to 1
}

// The runtime's side: what it was asked for, and an answer that a test sets.
struct FakeSampling {
  mri_sampler_req asked{};
  std::string grammar;
  std::vector<int32_t> accepted;
  int32_t drawn = 0;
  mri_status status = MRI_OK;
  int n_alive = 0;

  static FakeSampling& of(void* self) { return *static_cast<FakeSampling*>(self); }
  mri::Peer<mri_sampling_v1> peer() {
    static const mri_sampling_v1 kTable = {
        sizeof(mri_sampling_v1),
        0,
        [](void* self, const mri_sampler_req* req, uint64_t* sampler, mri_error*) {
          of(self).asked = *req;
          of(self).grammar = req->grammar == nullptr ? "" : req->grammar;
          *sampler = 5;
          of(self).n_alive += of(self).status == MRI_OK ? 1 : 0;
          return of(self).status;
        },
        [](void* self, uint64_t, const float*, int32_t* token, mri_error*) {
          *token = of(self).drawn;
          return of(self).status;
        },
        [](void* self, uint64_t, const int32_t* tokens, uint64_t n, mri_error*) {
          of(self).accepted.assign(tokens, tokens + n);
          return of(self).status;
        },
        [](void* self, uint64_t sampler) { of(self).n_alive -= sampler == 5 ? 1 : 0; }};
    mri::Peer<mri_sampling_v1> peer;
    peer.table = &kTable;
    peer.self = this;
    return peer;
  }
};

TEST(Sampler, LeavesToTheRuntimeWhatItDoesNotDrawItself) {
  FakeSampling runtime;
  SamplerOptions options;
  options.temperature = 0.5;
  options.top_k = 3;
  options.grammar = "root ::= \"a\"";
  options.logit_bias = {{2, -1.0f}};
  {
    const auto sampler = Sampler::make(options, runtime.peer(), 4);
    ASSERT_TRUE(sampler.ok()) << sampler.status();
    EXPECT_EQ(runtime.asked.top_k, 3u);
    EXPECT_EQ(runtime.asked.n_biases, 1u);
    EXPECT_EQ(runtime.asked.repetition_penalty, 1.0f);
    EXPECT_EQ(runtime.grammar, options.grammar);
    runtime.drawn = 3;
    EXPECT_EQ(*(*sampler)->sample(std::vector<float>(4)), 3);
    EXPECT_TRUE((*sampler)->accept(std::vector<int32_t>{1, 2}).ok());
    EXPECT_EQ(runtime.accepted, (std::vector<int32_t>{1, 2}));

    EXPECT_EQ((*sampler)->sample(std::vector<float>(3)).status().code(),
              absl::StatusCode::kInternal);
    runtime.drawn = 4;
    EXPECT_EQ((*sampler)->sample(std::vector<float>(4)).status().code(),
              absl::StatusCode::kInternal);
    runtime.status = MRI_E_STATE;
    EXPECT_EQ((*sampler)->sample(std::vector<float>(4)).status().code(),
              absl::StatusCode::kOutOfRange);
    EXPECT_EQ(runtime.n_alive, 1);
  }
  EXPECT_EQ(runtime.n_alive, 0);
  runtime.status = MRI_E_ARG;
  EXPECT_EQ(Sampler::make(options, runtime.peer(), 4).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Sampler, NeedsTheRuntimeOnlyWhereItMatters) {
  SamplerOptions options;
  options.top_k = 3;
  options.min_p = 0.5;
  EXPECT_TRUE(Sampler::make(options, {}, 4).ok()) << "the likeliest is in every cut";
  options.temperature = 1;
  EXPECT_EQ(Sampler::make(options, {}, 4).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(Sampler, RefusesOptionsOutOfRange) {
  const auto code_of = [](auto change) {
    FakeSampling runtime;
    SamplerOptions options;
    change(options);
    return Sampler::make(options, runtime.peer(), 4).status().code();
  };
  EXPECT_EQ(code_of([](SamplerOptions&) {}), absl::StatusCode::kOk);
  for (const double bad : {-0.1, 1.1, static_cast<double>(NAN)}) {
    EXPECT_EQ(code_of([&](auto& o) { o.top_p = bad; }), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(code_of([&](auto& o) { o.min_p = bad; }), absl::StatusCode::kInvalidArgument);
  }
  for (const double bad : {-1.0, 1e9, static_cast<double>(NAN)}) {
    EXPECT_EQ(code_of([&](auto& o) { o.temperature = bad; }), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(code_of([&](auto& o) { o.repetition_penalty = bad; }),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(code_of([](auto& o) { o.presence_penalty = INFINITY; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](auto& o) {
              o.logit_bias = {{4, 1.0f}};
            }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](auto& o) {
              o.logit_bias = {{0, NAN}};
            }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](auto& o) { o.logit_bias = {{0, -INFINITY}}; }), absl::StatusCode::kOk);
  EXPECT_EQ(code_of([](auto& o) { o.grammar = std::string("a\0b", 3); }),
            absl::StatusCode::kInvalidArgument);
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
