#include "core/base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "core/base/limits.h"

namespace varve {
namespace {

constexpr uint64_t kEpochOne = uint64_t{1} << 32;
constexpr uint64_t kWorkersMask = kEpochOne - 1;
constexpr uint32_t kSpinsPerLook = 64;

bool is_open(uint64_t gate) { return (gate & kEpochOne) != 0; }
uint64_t epoch(uint64_t gate) { return gate >> 32; }

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

uint32_t available_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0 && CPU_COUNT(&cores) > 0) {
    return static_cast<uint32_t>(CPU_COUNT(&cores));
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

ThreadPool::ThreadPool(uint32_t n_threads) {
  const uint32_t n = std::min(n_threads == 0 ? available_cores() : n_threads, kThreadsMax);
  workers_.reserve(n - 1);
  for (uint32_t worker = 1; worker < n; ++worker) {
    workers_.emplace_back([this, worker] { work(worker); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::parallel_for(uint64_t n, Task task, void* user) {
  if (n <= 1 || workers_.empty() || busy_.exchange(true, std::memory_order_acquire)) {
    for (uint64_t i = 0; i < n; ++i) task(user, i, 0);
    return;
  }
  task_ = task;
  user_ = user;
  n_ = n;
  next_.store(0, std::memory_order_relaxed);
  // Sequentially consistent with wait_for_loop(): either it sees the loop, or this sees the
  // sleeper.
  gate_.fetch_add(kEpochOne);
  if (sleepers_.load() > 0) {
    wake_.fetch_add(1);
    wake_.notify_all();
  }
  run_items(0);
  gate_.fetch_add(kEpochOne);
  for (uint32_t spins = 0; (gate_.load(std::memory_order_acquire) & kWorkersMask) != 0; ++spins) {
    if (spins % 1024 == 1023) {
      std::this_thread::yield();  // the worker has lost its core
    } else {
      pause();
    }
  }
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::run_items(uint32_t worker) {
  for (;;) {
    const uint64_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= n_) return;
    task_(user_, i, worker);
  }
}

uint64_t ThreadPool::wait_for_loop(uint64_t seen) {
  const auto newer = [&](uint64_t gate) { return is_open(gate) && epoch(gate) != seen; };
  while (!stop_.load()) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::microseconds(kThreadSpinUs);
    do {
      for (uint32_t i = 0; i < kSpinsPerLook; ++i) {
        const uint64_t gate = gate_.load(std::memory_order_relaxed);
        if (newer(gate)) return gate;
        pause();
      }
    } while (std::chrono::steady_clock::now() < limit);
    // No mutex: a worker that loses its core here must not hold up the caller. One that wakes too
    // late for its loop spins again, as the next loop is likely near.
    sleepers_.fetch_add(1);
    const uint32_t wakes = wake_.load();
    if (!newer(gate_.load()) && !stop_.load()) wake_.wait(wakes);
    sleepers_.fetch_sub(1);
  }
  return 0;
}

void ThreadPool::work(uint32_t worker) {
  uint64_t seen = 0;
  while (uint64_t gate = wait_for_loop(seen)) {
    seen = epoch(gate);
    // Enter while this loop is open: from here on the caller waits for this worker.
    bool inside = false;
    while (!inside && is_open(gate) && epoch(gate) == seen) {
      inside = gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire);
    }
    if (!inside) continue;
    run_items(worker);
    gate_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace varve
