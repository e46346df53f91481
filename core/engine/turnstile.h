// Whose step runs next: lanes share one machine, and the most urgent one goes first.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"

namespace varve {

// All lanes of a process pass through one turnstile before each step, so that a class of high
// priority waits for at most the step under way whatever stack it runs on. Thread-safe.
class Turnstile {
 public:
  // `share_min`: of the steps, this share (0..1) goes to whoever has waited longest, so that nobody
  // starves. `ageing_us`: each such wait raises the priority of the one who waits by one; 0: never.
  explicit Turnstile(double share_min = 0.1, uint64_t ageing_us = 1'000'000);

  // Waits for the turn and holds it until the pass is destroyed.
  class Pass {
   public:
    Pass(Turnstile& turnstile, uint32_t priority);
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    // Lines up again before letting go, so that what comes between two steps of an urgent lane does
    // not let a less urgent one in. Returns with the turn.
    void renew(uint32_t priority);

   private:
    Turnstile& turnstile_;
  };

  size_t waiting() const;  // how many wait for their turn now

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiter {
    uint32_t priority;
    Clock::time_point since;
    bool has_turn = false;
    std::condition_variable_any turn;
  };

  void line_up(uint32_t priority, bool holds_turn);
  void hand_over() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const double share_min_;
  const uint64_t ageing_us_;
  mutable Mutex mutex_;
  bool is_taken_ ABSL_GUARDED_BY(mutex_) = false;
  double owed_ ABSL_GUARDED_BY(mutex_) = 0;               // turns, to whoever has waited longest
  std::vector<Waiter*> waiters_ ABSL_GUARDED_BY(mutex_);  // in order of arrival
};

}  // namespace varve
