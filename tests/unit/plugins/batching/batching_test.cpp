#include "mri/kind/batching.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/support/fake_host.h"

namespace varve::test {
namespace {

class BatchingTest : public testing::Test {
 protected:
  BatchingTest() {
    req_.step_tokens_max = 100;
    req_.kv_bytes_free = 1 << 20;
    req_.sequences_max = 16;
  }

  mri_batch_request& add(bool running, uint64_t prompt_tokens_left, uint64_t age_us = 0) {
    mri_batch_request r{};
    r.id = requests_.size() + 1;
    r.age_us = age_us;
    r.prompt_tokens_left = prompt_tokens_left;
    r.running = running;
    r.context_tokens = running ? 10 : 0;
    r.kv_bytes = running ? 1000 : 0;
    requests_.push_back(r);
    return requests_.back();
  }

  std::vector<mri_batch_pick> next_step(const FakeHost& host) {
    req_.requests = requests_.data();
    req_.n_requests = requests_.size();
    std::vector<mri_batch_pick> picks(requests_.size());
    auto rsp = sized<mri_batch_rsp>();
    rsp.picks = picks.data();
    rsp.capacity = picks.size();
    const auto& table = host.table<mri_batching_v1>(MRI_BATCHING);
    EXPECT_EQ(table.next_step(host.self(), &req_, &rsp, nullptr), MRI_OK);
    picks.resize(rsp.n_picks);
    return picks;
  }

  // Tokens by request number.
  static std::map<uint32_t, uint32_t> tokens(const std::vector<mri_batch_pick>& picks) {
    std::map<uint32_t, uint32_t> all;
    for (const auto& p : picks)
      EXPECT_TRUE(all.emplace(p.request, p.n_tokens).second) << "picked twice";
    return all;
  }

  using Tokens = std::map<uint32_t, uint32_t>;
  std::vector<mri_batch_request> requests_;
  mri_batch_req req_ = sized<mri_batch_req>();
};

TEST_F(BatchingTest, ServesInOrderOfArrival) {
  const FakeHost fcfs(FCFS_PLUGIN, {});
  add(false, 70, 900);
  add(false, 70, 500);
  add(false, 70, 100);
  EXPECT_EQ(tokens(next_step(fcfs)), (Tokens{{0, 70}, {1, 30}}));
}

TEST_F(BatchingTest, ServesPriorityFirst) {
  const FakeHost fcfs(FCFS_PLUGIN, {});
  add(false, 70, 900);
  add(false, 70, 500).priority = 3;
  EXPECT_EQ(tokens(next_step(fcfs)), (Tokens{{1, 70}, {0, 30}}));
}

TEST_F(BatchingTest, WaitingRaisesPriority) {
  const FakeHost fcfs(FCFS_PLUGIN, {param("ageing_ms", 1)});
  add(false, 70, 5000);
  add(false, 70, 500).priority = 3;
  EXPECT_EQ(tokens(next_step(fcfs)), (Tokens{{0, 70}, {1, 30}}));
}

TEST_F(BatchingTest, PromptsShareTheStepWithThoseWhoDecode) {
  const FakeHost fcfs(FCFS_PLUGIN, {param("prefill_share_percent", 20)});
  add(false, 70, 900);
  add(true, 0, 1000);
  add(true, 0, 1000);
  EXPECT_EQ(tokens(next_step(fcfs)), (Tokens{{1, 1}, {2, 1}, {0, 20}}));
}

TEST_F(BatchingTest, HoldsTheLimitOfSequences) {
  const FakeHost fcfs(FCFS_PLUGIN, {});
  req_.sequences_max = 2;
  add(false, 10, 900);
  add(false, 10, 800);
  add(true, 50, 1000);
  EXPECT_EQ(tokens(next_step(fcfs)), (Tokens{{2, 50}, {0, 10}}));
}

TEST_F(BatchingTest, AdmitsOnlyWhatFitsUnlessNothingRuns) {
  const FakeHost fcfs(FCFS_PLUGIN, {});
  req_.kv_bytes_free = 1500;  // a running token takes 100
  add(false, 20, 900);
  add(true, 0, 1000);
  EXPECT_EQ(tokens(next_step(fcfs)), (Tokens{{1, 1}}));
  requests_.pop_back();
  EXPECT_EQ(tokens(next_step(fcfs)), (Tokens{{0, 20}}));
}

TEST_F(BatchingTest, NobodyOvertakesARequestThatDoesNotFit) {
  req_.kv_bytes_free = 1500;
  add(false, 20, 900);
  add(false, 5, 800);
  add(true, 7, 100);
  for (const char* library : {FCFS_PLUGIN, ROUTER_PLUGIN}) {
    const FakeHost host(library, {});
    EXPECT_EQ(tokens(next_step(host)), (Tokens{{2, 7}}));
  }
}

TEST_F(BatchingTest, NothingToDoIsAnEmptyStep) {
  const FakeHost fcfs(FCFS_PLUGIN, {}), router(ROUTER_PLUGIN, {});
  EXPECT_TRUE(next_step(fcfs).empty());
  EXPECT_TRUE(next_step(router).empty());
}

TEST_F(BatchingTest, RouterLeavesSmallBatchesWhole) {
  const FakeHost router(ROUTER_PLUGIN, {});
  for (int i = 0; i < 8; ++i) add(true, 0);
  for (const auto& p : next_step(router)) EXPECT_EQ(p.sub_batch, 0u);
}

TEST_F(BatchingTest, RouterPutsSimilarLengthsTogether) {
  const FakeHost router(ROUTER_PLUGIN, {});
  for (uint32_t i = 0; i < 12; ++i)
    add(true, 0).context_tokens = i % 3 == 0 ? 9000 + i : 10 * i + 1;
  std::map<uint32_t, std::vector<uint32_t>> lengths;
  for (const auto& p : next_step(router))
    lengths[p.sub_batch].push_back(requests_[p.request].context_tokens);
  ASSERT_EQ(lengths.size(), 3u);
  for (uint32_t length : lengths[2]) EXPECT_GE(length, 9000u);
  for (const auto& [sub_batch, all] : lengths) EXPECT_EQ(all.size(), 4u) << sub_batch;
}

// Random queues: nobody twice, no limit broken, someone served when someone can be, sub-batches
// dense, rising and small.
TEST_F(BatchingTest, KeepsTheLimitsOnRandomQueues) {
  const FakeHost fcfs(FCFS_PLUGIN, {}), router(ROUTER_PLUGIN, {});
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    requests_.clear();
    const uint32_t n = random() % 40;
    uint32_t running = 0;
    for (uint32_t i = 0; i < n; ++i) {
      auto& r = add(i > n / 2, random() % 3 == 0 ? 0 : random() % 300, random() % 100000000);
      r.priority = random() % 4;
      running += r.running;
    }
    req_.step_tokens_max = 1 + random() % 200;
    req_.sequences_max = running + random() % 8;
    req_.kv_bytes_free = random() % 100000;
    for (const FakeHost* host : {&fcfs, &router}) {
      const auto picks = next_step(*host);
      const Tokens picked = tokens(picks);
      uint64_t sum = 0, sequences = running;
      for (const auto& [i, count] : picked) {
        EXPECT_GE(count, 1u);
        EXPECT_LE(count, std::max<uint64_t>(1, requests_[i].prompt_tokens_left));
        sum += count;
        sequences += requests_[i].running == 0;
      }
      EXPECT_LE(sum, req_.step_tokens_max);
      EXPECT_LE(sequences, req_.sequences_max);
      EXPECT_TRUE(running == 0 || !picked.empty());
      std::map<uint32_t, uint32_t> sizes;
      for (const auto& p : picks) ++sizes[p.sub_batch];
      if (host == &router && picks.size() > 8) {
        for (const auto& [sub_batch, size] : sizes) EXPECT_LE(size, 4u) << sub_batch;
        EXPECT_EQ(sizes.rbegin()->first + 1, sizes.size());
      }
    }
  }
}

}  // namespace
}  // namespace varve::test
