// Many at once: each ends exactly once, right or with a reason, and nothing is left behind.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/unit/core/engine/lane_fixture.h"

namespace varve::test {
namespace {

Value number(int64_t n) { return Value(n); }

using LaneStressTest = LaneFixture;

struct Sent {
  std::string prompt;
  uint64_t n_tokens = 0;
  std::shared_ptr<Recorder> sink;
  CancelFlag cancel;
};

GenerateRequest random_request(std::mt19937_64& random, uint64_t i) {
  GenerateRequest r;
  const std::string common = random() % 3 == 0 ? std::string(100, 'c') : "";
  const std::string prompt = common + std::to_string(i) +
                             std::string(random() % 300, static_cast<char>('a' + random() % 26)) +
                             (random() % 12 == 0 ? "!" : ".");
  r.prompt.assign(prompt.begin(), prompt.end());
  r.tenant = "tenant " + std::to_string(random() % 4);
  r.priority = static_cast<uint32_t>(random() % 3 * 5);
  r.is_shadow = random() % 15 == 0;
  r.max_tokens = random() % 60;
  r.keeps_prefix = random() % 4 != 0;
  r.n_prompt_logprobs = random() % 10 == 0 ? 1 : -1;
  if (random() % 6 == 0)
    r.deadline = absl::Now() + absl::Milliseconds(static_cast<int64_t>(random() % 60));
  return r;
}

void check(const Sent& sent) {
  const GenerateResult& result = sent.sink->wait();
  EXPECT_EQ(sent.sink->n_ends(), 1);
  switch (result.reason) {
    case FinishReason::kLength:
      EXPECT_TRUE(result.status.ok());
      EXPECT_EQ(sent.sink->text(), repeated(sent.prompt, sent.n_tokens));
      EXPECT_EQ(sent.prompt.find('!'), std::string::npos);
      break;
    case FinishReason::kCancelled:
      EXPECT_TRUE(absl::IsCancelled(result.status));
      break;
    case FinishReason::kError:
      EXPECT_FALSE(result.status.ok());
      break;
    case FinishReason::kStop:
      ADD_FAILURE() << "nothing ends these answers";
  }
}

TEST_F(LaneStressTest, EverybodyEndsOnce) {
  for (const uint64_t seed : {1u, 2u, 3u, 4u}) {
    std::mt19937_64 random(seed);
    LaneOptions options;
    options.concurrency = 6;
    options.concurrency_max = 12;
    options.queue_max = 60;
    options.step_ms_max = 5;
    start(options,
          {{"token_us", number(seed % 2 == 0 ? 5 : 0)},
           {"poison_token", number('!')},
           {"kv_bytes_max", number(64 * (seed == 3 ? 1000 : 4000))},
           {"hot_tokens", number(seed == 4 ? 64 : 100000)}},
          seed == 1   ? ""
          : seed == 2 ? "router"
                      : "fcfs");
    std::vector<Sent> sent;
    while (sent.size() < 200) {
      Sent s;
      GenerateRequest r = random_request(random, sent.size());
      s.prompt.assign(r.prompt.begin(), r.prompt.end());
      s.n_tokens = r.max_tokens;
      s.sink = std::make_shared<Recorder>();
      s.cancel = flag();
      const absl::Status status = lane_->submit(std::move(r), s.sink, s.cancel);
      if (status.ok()) {
        sent.push_back(std::move(s));
      } else {
        ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
        EXPECT_EQ(s.sink->n_ends(), 0);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      if (random() % 8 == 0 && !sent.empty()) *sent[random() % sent.size()].cancel = 1;
    }
    for (const Sent& s : sent) check(s);
    lane_->drain(absl::InfiniteFuture());
    EXPECT_EQ(lane_->status().running, 0u) << seed;
    EXPECT_EQ(lane_->status().waiting, 0u);
    EXPECT_EQ(memory().contexts, 0u);
    EXPECT_EQ(memory().used_bytes, memory().kept_bytes);
  }
}

TEST_F(LaneStressTest, ManyCallersAndTwoLanes) {
  LaneOptions options;
  options.concurrency = 4;
  options.queue_max = 200;
  start(options, {{"kv_bytes_max", number(64 * 3000)}});
  const std::shared_ptr<Stack> other_stack = load({{"token_us", number(2)}}, "router");
  options.name = "other";
  auto other = Lane::start(options, other_stack, &turnstile_);
  ASSERT_TRUE(other.ok());
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      std::vector<Sent> sent;
      for (int i = 0; i < 20; ++i) {
        Lane& lane = t % 2 == 0 ? *lane_ : **other;
        Sent s;
        GenerateRequest r = random_request(random, i);
        s.prompt.assign(r.prompt.begin(), r.prompt.end());
        s.n_tokens = r.max_tokens;
        s.sink = std::make_shared<Recorder>();
        s.cancel = flag();
        if (s.prompt.ends_with("!")) continue;
        if (lane.submit(std::move(r), s.sink, s.cancel).ok()) sent.push_back(std::move(s));
        (void)lane.status();
        (void)lane.retry_after();
        if (i % 7 == 0) lane.reconfigure(options);
        if (i % 5 == 0 && !sent.empty()) *sent.back().cancel = 1;
      }
      for (const Sent& s : sent) check(s);
    });
  }
  for (std::thread& thread : threads) thread.join();
  (*other)->drain(absl::InfiniteFuture());
  lane_->drain(absl::Now());
  EXPECT_EQ(memory().contexts, 0u);
}

}  // namespace
}  // namespace varve::test
