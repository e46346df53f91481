// Many threads step different contexts while others are evicted, made and released.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "tests/support/light_stack.h"
#include "tests/support/tiny_models.h"

namespace varve::test {
namespace {

TEST(EngineThreadsTest, StepsEvictionsAndReleasesAtOnce) {
  TempDir folder;
  TinyOptions tiny;
  tiny.n_embd = 256;
  write_gguf(tiny_model(light::Architecture::kLlama, tiny), folder.path("model.gguf"));
  LightStackOptions options;
  options.model_path = folder.path("model.gguf");
  options.tier = "age";
  options.tier_params = {{"hot_tokens", Value(int64_t{64})}, {"warm_tokens", Value(int64_t{128})}};
  options.runtime_params = {{"max_tokens", Value(int64_t{4096})},
                            {"prefill_chunk_tokens", Value(int64_t{128})}};
  LightStack stack(options);
  constexpr int kThreads = 4, kSteps = 60;
  std::vector<uint64_t> contexts(kThreads);
  for (int i = 0; i < kThreads; ++i)
    ASSERT_EQ(stack.init(random_tokens(200, i), &contexts[i]).status, MRI_OK);
  std::atomic<int> failures{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::vector<float> logits(264);
      for (int32_t step = 0; step < kSteps; ++step) {
        const int32_t token = (step * 7 + i) % 256;
        // The proxy refuses a context that another thread is in; the evictor then goes first.
        mri_status status = MRI_E_STATE;
        while (status == MRI_E_STATE)
          status = stack.step(contexts[i], std::span(&token, 1), logits.data()).status;
        if (status != MRI_OK || !std::isfinite(logits[0])) ++failures;
      }
    });
  }
  std::thread evictor([&] {
    for (uint64_t round = 0; !done; ++round) {
      mri_evict_rsp rsp{};
      stack.evict(contexts[round % kThreads], {32 + round % 160, 40},
                  static_cast<uint32_t>(round % 3), &rsp);
      uint64_t passing = 0;
      if (stack.init(random_tokens(70, round), &passing).status == MRI_OK) stack.release(passing);
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  evictor.join();
  EXPECT_EQ(failures, 0);
}

TEST(EngineThreadsTest, AReleaseWaitsForTheStepUnderWay) {
  TempDir folder;
  write_gguf(tiny_model(light::Architecture::kLlama), folder.path("model.gguf"));
  LightStackOptions options;
  options.model_path = folder.path("model.gguf");
  options.runtime_params = {{"max_tokens", Value(int64_t{1024})}};
  LightStack stack(options);
  for (uint64_t round = 0; round < 8; ++round) {
    uint64_t ctx = 0;
    ASSERT_EQ(stack.init(random_tokens(40, round), &ctx).status, MRI_OK);
    std::vector<mri_status> statuses;
    std::thread stepper([&] {
      for (mri_status status = MRI_OK; status == MRI_OK;) {
        const int32_t token = 7;
        status = stack.step(ctx, std::span(&token, 1)).status;
        statuses.push_back(status);
      }
    });
    std::thread evictor([&] {
      mri_evict_rsp rsp{};
      while (stack.evict(ctx, {8, 4}, MRI_EVICT_TOKEN, &rsp).status == MRI_OK) {
      }
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    stack.release(ctx);
    stack.release(ctx);
    stepper.join();
    evictor.join();
    EXPECT_EQ(statuses.back(), MRI_E_NOT_FOUND);  // neither starved nor cut short
  }
}

}  // namespace
}  // namespace varve::test
