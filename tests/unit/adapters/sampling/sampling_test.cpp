#include "adapters/sampling/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "adapters/light/model/tokenizer.h"
#include "mri/sdk/error.hpp"
#include "tests/support/tiny_models.h"

namespace varve::sampling {
namespace {

using testing::HasSubstr;

mri_sampler_req request() {
  mri_sampler_req req{};
  req.hdr.struct_size = sizeof(req);
  req.seed = 7;
  req.temperature = 1;
  req.top_p = 1;
  req.repetition_penalty = 1;
  req.penalty_tokens = 64;
  return req;
}

class SamplingTest : public testing::Test {
 protected:
  SamplingTest() {
    test::write_gguf(test::tiny_model(light::Architecture::kLlama), folder_.path("tiny.gguf"));
    tokenizer_ = std::make_unique<light::Tokenizer>(folder_.path("tiny.gguf"));
    samplers_ = std::make_unique<Samplers>(tokenizer_->vocab(), n());
    logits_.assign(n(), 0.0f);
  }

  uint32_t n() const { return tokenizer_->vocab_size(); }
  int32_t token(std::string_view text) const {
    int32_t found = 0;
    while (tokenizer_->piece(found) != text) ++found;
    return found;
  }
  float& logit(std::string_view text) { return logits_[static_cast<size_t>(token(text))]; }
  int32_t sample(uint64_t sampler) { return samplers_->sample(sampler, logits_.data()); }

  std::string status_of(const mri_sampler_req& req) {
    try {
      samplers_->release(samplers_->create(req));
    } catch (const mri::Error& e) {
      EXPECT_EQ(e.status(), MRI_E_ARG);
      return e.what();
    }
    return "";
  }

  // What the grammar makes of random logits, until an end token comes.
  std::string answer(const char* grammar, uint64_t seed, int n_tokens) {
    mri_sampler_req req = request();
    req.grammar = grammar;
    req.seed = seed;
    const uint64_t sampler = samplers_->create(req);
    std::string text;
    for (int i = 0; i < n_tokens; ++i) {
      const int32_t drawn = sample(sampler);
      if (tokenizer_->is_end(drawn)) break;
      text += tokenizer_->piece(drawn);
    }
    samplers_->release(sampler);
    return text;
  }

  test::TempDir folder_;
  std::unique_ptr<light::Tokenizer> tokenizer_;
  std::unique_ptr<Samplers> samplers_;
  std::vector<float> logits_;
};

TEST_F(SamplingTest, CutsToTheLikeliest) {
  logit("a") = 3;
  logit("b") = 2;
  logit("c") = 1;
  mri_sampler_req req = request();
  req.top_k = 2;
  const uint64_t two = samplers_->create(req);
  req.top_k = 0;
  req.min_p = 0.3f;  // b has 0.37 of a's probability
  const uint64_t share = samplers_->create(req);
  req.min_p = 0;
  req.top_p = 0;
  const uint64_t one = samplers_->create(req);
  std::set<int32_t> of_two, of_share;
  for (int i = 0; i < 200; ++i) {
    of_two.insert(sample(two));
    of_share.insert(sample(share));
    EXPECT_EQ(sample(one), token("a"));
  }
  EXPECT_THAT(of_two, testing::UnorderedElementsAre(token("a"), token("b")));
  EXPECT_EQ(of_share, of_two);
}

TEST_F(SamplingTest, BiasForbidsAndForces) {
  logit("a") = 3;
  const mri_logit_bias biases[] = {{token("a"), -INFINITY}, {token("b"), 100}};
  mri_sampler_req req = request();
  req.biases = biases;
  req.n_biases = 2;
  const uint64_t sampler = samplers_->create(req);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(sample(sampler), token("b"));
}

TEST_F(SamplingTest, PenaltiesSeePromptAndAnswer) {
  logit("a") = 3;
  logit("b") = 2.5;
  logit("c") = 2;
  mri_sampler_req req = request();
  req.temperature = 0;
  req.presence_penalty = 2;
  req.penalty_tokens = 2;
  const uint64_t sampler = samplers_->create(req);
  const std::vector<int32_t> prompt = {token("c"), token("c"), token("x"), token("a")};
  samplers_->accept(sampler, prompt);
  EXPECT_EQ(sample(sampler), token("b"));  // a is penalised, c lies too far back
  EXPECT_EQ(sample(sampler), token("c"));
  EXPECT_EQ(sample(sampler), token("a"));  // forgotten again
}

TEST_F(SamplingTest, SameSeedSameDraws) {
  mri_sampler_req req = request();
  req.top_k = 100;
  std::vector<int32_t> draws[3];
  for (int which = 0; which < 3; ++which) {
    req.seed = which == 2 ? 0xFFFFFFFFull : 5;  // libllama reads all ones as "any seed"
    const uint64_t sampler = samplers_->create(req);
    for (int i = 0; i < 30; ++i) draws[which].push_back(sample(sampler));
  }
  EXPECT_EQ(draws[0], draws[1]);
  EXPECT_NE(draws[0], draws[2]);
  const uint64_t again = samplers_->create(req);
  EXPECT_EQ(sample(again), draws[2][0]);
}

TEST_F(SamplingTest, GrammarAllowsOnlyWhatFollowsAndThenTheEnd) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string text = answer("root ::= (\"yes\" | \"no\") \", \" [0-9]{2}", seed, 20);
    EXPECT_THAT(text, testing::MatchesRegex("(yes|no), [0-9][0-9]"));
  }
}

TEST_F(SamplingTest, CompleteGrammarLeavesOnlyEndTokens) {
  mri_sampler_req req = request();
  req.grammar = "root ::= \"a\"";
  req.temperature = 0;
  const uint64_t sampler = samplers_->create(req);
  EXPECT_EQ(sample(sampler), token("a"));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(tokenizer_->is_end(sample(sampler)));
  for (uint32_t t = 0; t < n(); ++t) {
    if (tokenizer_->is_end(static_cast<int32_t>(t))) logits_[t] = -INFINITY;  // min_tokens does it
  }
  try {
    sample(sampler);
    FAIL();
  } catch (const mri::Error& e) {
    EXPECT_EQ(e.status(), MRI_E_STATE);
  }
}

TEST_F(SamplingTest, GrammarTakesTheLikeliestOfTheAllowed) {
  logit("x") = 9;
  logit("b") = 3;
  logit("c") = 2;
  mri_sampler_req req = request();
  req.grammar = "root ::= [a-c]+";
  req.temperature = 0;
  const uint64_t sampler = samplers_->create(req);
  EXPECT_EQ(sample(sampler), token("b"));
  logit("a") = NAN;
  EXPECT_EQ(sample(sampler), token("b"));
}

TEST_F(SamplingTest, BadGrammarsAreRefusedAndLeaveNothing) {
  const std::string deep = "root ::= " + std::string(60000, '(');
  for (const char* grammar :
       {"", "root", "root ::= a", "root ::= root \"x\" | \"y\"", "root ::= \"a\"{1,1000000}",
        "root ::= [^", "start ::= \"a\"", "\xff\xfe", deep.c_str()}) {
    mri_sampler_req req = request();
    req.grammar = grammar;
    EXPECT_THAT(status_of(req), HasSubstr("grammar")) << grammar;
  }
  EXPECT_EQ(answer("root ::= \"ok\"", 1, 5), "ok");
}

TEST_F(SamplingTest, RefusesValuesOutOfRange) {
  mri_sampler_req req = request();
  req.temperature = NAN;
  EXPECT_THAT(status_of(req), HasSubstr("temperature"));
  req = request();
  req.top_p = 1.5f;
  EXPECT_THAT(status_of(req), HasSubstr("top_p"));
  req = request();
  req.repetition_penalty = 0;
  EXPECT_THAT(status_of(req), HasSubstr("repetition_penalty"));
  req = request();
  req.penalty_tokens = UINT32_MAX;
  EXPECT_THAT(status_of(req), HasSubstr("penalty_tokens"));
  const mri_logit_bias outside{static_cast<int32_t>(n()), 1};
  req = request();
  req.biases = &outside;
  req.n_biases = 1;
  EXPECT_THAT(status_of(req), HasSubstr("biases"));
  const uint64_t sampler = samplers_->create(request());
  EXPECT_THROW(samplers_->accept(sampler, std::vector<int32_t>{-1}), mri::Error);
  logits_.assign(n(), -INFINITY);
  EXPECT_THROW(sample(sampler), mri::Error);
  samplers_->release(sampler);
  samplers_->release(sampler);
  EXPECT_THROW(sample(sampler), mri::Error);
}

TEST_F(SamplingTest, SamplersOfSeveralThreadsAreIndependent) {
  const std::string alone = answer("root ::= [a-z]{200}", 3, 300);
  std::vector<std::thread> threads;
  std::vector<std::string> texts(4);
  for (std::string& text : texts)
    threads.emplace_back([&] { text = answer("root ::= [a-z]{200}", 3, 300); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_EQ(text, alone);
}

}  // namespace
}  // namespace varve::sampling
