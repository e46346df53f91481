// Whose step runs next: lanes share one machine, and the most urgent one goes first.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"

namespace varve {

// All lanes of a process pass through one turnstile before each step, so that a class of high
// priority waits for at most the step under way whatever stack it runs on. Thread-safe.
class Turnstile {
 public:
  // `share_min`: of the steps, this share (0..1) goes to whoever has waited longest, so that nobody
  // starves. `ageing`: each such wait raises the priority of the one who waits by one.
  explicit Turnstile(double share_min = 0.1, uint64_t ageing_us = 1'000'000);

  // Waits for the turn and holds it until the pass is destroyed.
  class Pass {
   public:
    Pass(Turnstile& turnstile, uint32_t priority);
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    Turnstile& turnstile_;
  };
};

}  // namespace varve
