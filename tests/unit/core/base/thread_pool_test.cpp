#include "core/base/thread_pool.h"

#include <gtest/gtest.h>

#include <functional>

namespace varve {
namespace {

using Body = std::function<void(uint64_t, uint32_t)>;

void each(ThreadPool& pool, uint64_t n, const Body& body) {
  pool.parallel_for(
      n,
      [](void* user, uint64_t i, uint32_t worker) { (*static_cast<const Body*>(user))(i, worker); },
      const_cast<Body*>(&body));
}

TEST(ThreadPool, CallsEachItemOnce) {
  for (const uint32_t n_threads : {1u, 2u, 5u}) {
    ThreadPool pool(n_threads);
    EXPECT_EQ(pool.concurrency(), n_threads);
    for (const uint64_t n : {0, 1, 2, 3, 100, 5000}) {
      std::vector<std::atomic<int>> calls(n);
      each(pool, n, [&](uint64_t i, uint32_t) { calls[i].fetch_add(1); });
      for (uint64_t i = 0; i < n; ++i) ASSERT_EQ(calls[i].load(), 1) << i << " of " << n;
    }
  }
}

TEST(ThreadPool, ZeroThreadsMeansAllCores) { EXPECT_GE(ThreadPool(0).concurrency(), 1u); }

TEST(ThreadPool, ResultsAreVisibleToTheCallerWithoutAtomics) {
  ThreadPool pool(4);
  std::vector<uint64_t> square(64);
  for (uint64_t round = 0; round < 2000; ++round) {
    each(pool, square.size(), [&](uint64_t i, uint32_t) { square[i] = i * i + round; });
    for (uint64_t i = 0; i < square.size(); ++i) ASSERT_EQ(square[i], i * i + round);
  }
}

TEST(ThreadPool, WorkerNumbersDifferAmongConcurrentCalls) {
  ThreadPool pool(4);
  std::array<std::atomic<int>, 4> inside{};
  std::atomic<bool> shared{false};
  each(pool, 4000, [&](uint64_t, uint32_t worker) {
    ASSERT_LT(worker, pool.concurrency());
    if (inside[worker].fetch_add(1) != 0) shared = true;
    inside[worker].fetch_sub(1);
  });
  EXPECT_FALSE(shared);
}

// Two items that wait for each other finish only on two threads.
TEST(ThreadPool, WorkersTakePart) {
  ThreadPool pool(2);
  std::atomic<int> arrived{0};
  each(pool, 2, [&](uint64_t, uint32_t) {
    arrived.fetch_add(1);
    while (arrived.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived.load(), 2);
}

TEST(ThreadPool, SleepingWorkersWake) {
  ThreadPool pool(2);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // far beyond the spinning
    std::atomic<int> arrived{0};
    each(pool, 2, [&](uint64_t, uint32_t) {
      arrived.fetch_add(1);
      while (arrived.load() < 2) std::this_thread::yield();
    });
  }
}

TEST(ThreadPool, NestedCallsRunInTheCallingThread) {
  ThreadPool pool(3);
  std::atomic<int> calls{0};
  each(pool, 6, [&](uint64_t, uint32_t) {
    const auto outer = std::this_thread::get_id();
    each(pool, 5, [&](uint64_t, uint32_t worker) {
      EXPECT_EQ(worker, 0u);
      EXPECT_EQ(std::this_thread::get_id(), outer);
      calls.fetch_add(1);
    });
  });
  EXPECT_EQ(calls.load(), 30);
}

TEST(ThreadPool, SeveralCallersShareIt) {
  ThreadPool pool(3);
  std::atomic<uint64_t> sum{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        each(pool, 10, [&](uint64_t i, uint32_t) { sum.fetch_add(i); });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum.load(), 4u * 300u * 45u);
}

}  // namespace
}  // namespace varve
