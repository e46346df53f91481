// The process's worker threads: one parallel loop at a time, cheap enough for hundreds per token.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace varve {

// A loop runs on the calling thread and on whichever workers come in time; the caller never waits
// for a worker that has not started. Workers spin for kThreadSpinUs after a loop, then sleep. All
// methods may be called from any thread.
class ThreadPool {
 public:
  // `n_threads` counts the caller; 0: one per core that this process may use.
  explicit ThreadPool(uint32_t n_threads = 0);
  // No loop may be running.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t concurrency() const { return static_cast<uint32_t>(workers_.size()) + 1; }

  // Calls task(user, i, worker) once for each i in [0, n) and returns when all are done; worker <
  // concurrency() and differs between calls of this loop that run at the same time. While another
  // loop runs (a nested call, or another thread's) it runs wholly in the calling thread, with
  // worker 0. `task` does not throw.
  using Task = void (*)(void* user, uint64_t i, uint32_t worker);
  void parallel_for(uint64_t n, Task task, void* user);

 private:
  void work(uint32_t worker);
  void run_items(uint32_t worker);
  // Spins, then sleeps, until a loop newer than `seen` is open. Returns the gate's value, 0 at
  // stop.
  uint64_t wait_for_loop(uint64_t seen);

  // Epoch in the high half: odd while a loop is open. Workers inside it in the low half.
  std::atomic<uint64_t> gate_{0};
  std::atomic<bool> busy_{false};
  std::atomic<bool> stop_{false};
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> wake_{0};  // what sleepers wait on: changes when they shall look again

  // The open loop: written only while the gate is closed and empty.
  Task task_ = nullptr;
  void* user_ = nullptr;
  uint64_t n_ = 0;
  alignas(64) std::atomic<uint64_t> next_{0};

  std::vector<std::thread> workers_;
};

}  // namespace varve
