#include "core/batch/batcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>

namespace varve {
namespace {

using testing::ElementsAre;
using testing::Field;

// A plugin whose answer a test writes.
struct Plugin {
  std::function<mri_status(const mri_batch_req&, mri_batch_rsp&)> answer;

  mri::Peer<mri_batching_v1> peer() {
    static constexpr mri_batching_v1 kTable = {
        sizeof(mri_batching_v1), 0,
        [](void* self, const mri_batch_req* req, mri_batch_rsp* rsp, mri_error*) {
          return static_cast<Plugin*>(self)->answer(*req, *rsp);
        }};
    return {&kTable, this};
  }
  void answers(std::vector<mri_batch_pick> picks) {
    answer = [picks](const mri_batch_req&, mri_batch_rsp& rsp) {
      std::copy(picks.begin(), picks.end(), rsp.picks);
      rsp.n_picks = picks.size();
      return MRI_OK;
    };
  }
};

mri_batch_request waiting(uint64_t prompt) {
  mri_batch_request r{};
  r.prompt_tokens_left = prompt;
  return r;
}
mri_batch_request running(uint64_t prompt_left) {
  mri_batch_request r = waiting(prompt_left);
  r.running = 1;
  return r;
}
auto pick(uint32_t request, uint32_t n_tokens) {
  return testing::AllOf(Field(&mri_batch_pick::request, request),
                        Field(&mri_batch_pick::n_tokens, n_tokens));
}

TEST(Batcher, AloneServesFirstComeFirst) {
  Batcher batcher({});
  const std::vector<mri_batch_request> requests = {waiting(50), waiting(50), running(30),
                                                   running(0)};
  EXPECT_THAT(batcher.next_step(requests, {100, UINT64_MAX, 3}),
              ElementsAre(pick(3, 1), pick(2, 30), pick(0, 50)));
  EXPECT_THAT(batcher.next_step(requests, {10, UINT64_MAX, 4}),
              ElementsAre(pick(3, 1), pick(2, 9)));
  EXPECT_TRUE(batcher.next_step(requests, {0, UINT64_MAX, 4}).empty());
  EXPECT_TRUE(batcher.next_step({}, {10, UINT64_MAX, 4}).empty());
  EXPECT_EQ(batcher.clips(), 0u);
}

TEST(Batcher, PassesOnWhatThePluginSays) {
  Plugin plugin;
  plugin.answers({{1, 1, 1, 0}, {0, 20, 0, 0}, {2, 1, 1, 0}});
  Batcher batcher(plugin.peer());
  const std::vector<mri_batch_request> requests = {waiting(50), running(0), running(0)};
  const auto picks = batcher.next_step(requests, {100, 4096, 3});
  EXPECT_THAT(picks, ElementsAre(pick(0, 20), pick(1, 1), pick(2, 1))) << "sub-batches in order";
  EXPECT_EQ(picks[2].sub_batch, 1u);
  EXPECT_EQ(batcher.clips(), 0u);
}

TEST(Batcher, ClipsEveryBrokenLimit) {
  Plugin plugin;
  Batcher batcher(plugin.peer());
  const std::vector<mri_batch_request> requests = {waiting(50), running(0), running(8)};
  const BatchLimits limits{40, UINT64_MAX, 3};
  plugin.answers({{7, 1, 0, 0}, {1, 1, 0, 0}});
  EXPECT_THAT(batcher.next_step(requests, limits), ElementsAre(pick(1, 1))) << "unknown number";
  plugin.answers({{1, 1, 0, 0}, {1, 1, 1, 0}});
  EXPECT_THAT(batcher.next_step(requests, limits), ElementsAre(pick(1, 1))) << "twice";
  plugin.answers({{1, 5, 0, 0}, {2, 9, 0, 0}, {0, 60, 0, 0}});
  EXPECT_THAT(batcher.next_step(requests, limits), ElementsAre(pick(1, 1), pick(2, 8), pick(0, 31)))
      << "too many tokens, each and in all";
  plugin.answers({{1, 0, 0, 0}, {2, 1, 0, 0}});
  EXPECT_THAT(batcher.next_step(requests, limits), ElementsAre(pick(2, 1))) << "no tokens";
  plugin.answers({{0, 1, 0, 0}, {1, 1, 0, 0}});
  EXPECT_THAT(batcher.next_step(requests, {40, UINT64_MAX, 2}), ElementsAre(pick(1, 1)))
      << "more running than may";
  EXPECT_EQ(batcher.clips(), 5u);
}

TEST(Batcher, ReplacesAPluginThatFailsOrRests) {
  Plugin plugin;
  Batcher batcher(plugin.peer());
  const std::vector<mri_batch_request> requests = {running(0)};
  plugin.answer = [](auto&, auto&) -> mri_status { return MRI_E_INTERNAL; };
  EXPECT_THAT(batcher.next_step(requests, {10, 0, 1}), ElementsAre(pick(0, 1)));
  plugin.answers({});
  EXPECT_THAT(batcher.next_step(requests, {10, 0, 1}), ElementsAre(pick(0, 1)));
  plugin.answers({{9, 9, 9, 9}});
  EXPECT_THAT(batcher.next_step(requests, {10, 0, 1}), ElementsAre(pick(0, 1)));
  EXPECT_EQ(batcher.clips(), 3u);
}

TEST(Batcher, KeepsLimitsWhateverIsAnswered) {
  std::mt19937_64 random(3);
  Plugin plugin;
  plugin.answer = [&](const mri_batch_req& req, mri_batch_rsp& rsp) {
    rsp.n_picks = random() % (rsp.capacity + 1);
    for (uint64_t i = 0; i < rsp.n_picks; ++i) {
      rsp.picks[i] = {static_cast<uint32_t>(random() % (req.n_requests + 2)),
                      static_cast<uint32_t>(random() % 40), static_cast<uint32_t>(random() % 3), 0};
    }
    return random() % 20 == 0 ? MRI_E_INTERNAL : MRI_OK;
  };
  Batcher batcher(plugin.peer());
  for (int round = 0; round < 2000; ++round) {
    std::vector<mri_batch_request> requests;
    uint32_t n_running = 0;
    for (uint64_t n = random() % 12; n > 0; --n) {
      requests.push_back(random() % 2 == 0 ? waiting(1 + random() % 50) : running(random() % 50));
      n_running += requests.back().running;
    }
    const BatchLimits limits{random() % 100, UINT64_MAX,
                             n_running + static_cast<uint32_t>(random() % 4)};
    uint64_t tokens = 0, started = 0, sub_batch = 0;
    std::set<uint32_t> seen;
    const auto picks = batcher.next_step(requests, limits);
    for (const mri_batch_pick& p : picks) {
      ASSERT_LT(p.request, requests.size());
      ASSERT_TRUE(seen.insert(p.request).second);
      ASSERT_GE(p.n_tokens, 1u);
      ASSERT_LE(p.n_tokens, std::max<uint64_t>(1, requests[p.request].prompt_tokens_left));
      ASSERT_GE(p.sub_batch, sub_batch);
      sub_batch = p.sub_batch;
      tokens += p.n_tokens;
      started += requests[p.request].running == 0;
    }
    ASSERT_LE(tokens, limits.step_tokens_max);
    ASSERT_LE(n_running + started, limits.sequences_max);
    ASSERT_EQ(picks.empty(), requests.empty() || limits.step_tokens_max == 0 ||
                                 (n_running == 0 && limits.sequences_max == 0));
  }
}

}  // namespace
}  // namespace varve
