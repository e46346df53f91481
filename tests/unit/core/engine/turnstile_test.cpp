#include "core/engine/turnstile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

namespace varve {
namespace {

using testing::ElementsAre;

// Threads that line up one by one behind a pass that is held, and note when they get through.
class Crowd {
 public:
  explicit Crowd(Turnstile& turnstile)
      : turnstile_(turnstile), gate_(std::in_place, turnstile, 0) {}

  void line_up(uint32_t priority, int name) {
    const size_t before = turnstile_.waiting();
    threads_.emplace_back([this, priority, name] {
      const Turnstile::Pass pass(turnstile_, priority);
      order_.push_back(name);
    });
    while (turnstile_.waiting() == before) std::this_thread::yield();
  }
  std::vector<int> open() {
    gate_.reset();
    for (std::thread& thread : threads_) thread.join();
    return order_;
  }
  Turnstile::Pass& gate() { return *gate_; }

 private:
  Turnstile& turnstile_;
  std::optional<Turnstile::Pass> gate_;
  std::vector<int> order_;  // written by whoever has the turn
  std::vector<std::thread> threads_;
};

TEST(Turnstile, MostUrgentFirstThenLongestWaiting) {
  Turnstile turnstile(0, 0);
  Crowd crowd(turnstile);
  crowd.line_up(1, 1);
  crowd.line_up(5, 2);
  crowd.line_up(5, 3);
  crowd.line_up(3, 4);
  EXPECT_THAT(crowd.open(), ElementsAre(2, 3, 4, 1));
}

TEST(Turnstile, AShareGoesToWhoeverWaitedLongest) {
  Turnstile turnstile(0.5, 0);
  Crowd crowd(turnstile);
  crowd.line_up(1, 1);
  crowd.line_up(2, 2);
  crowd.line_up(9, 3);
  crowd.line_up(8, 4);
  EXPECT_THAT(crowd.open(), ElementsAre(3, 1, 4, 2));
}

TEST(Turnstile, WaitingRaisesPriority) {
  Turnstile turnstile(0, 100);
  Crowd crowd(turnstile);
  crowd.line_up(1, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // worth 200
  crowd.line_up(50, 2);
  EXPECT_EQ(crowd.open().front(), 1);
}

TEST(Turnstile, RenewingKeepsLessUrgentOnesOut) {
  Turnstile turnstile(0, 0);
  Crowd crowd(turnstile);
  crowd.line_up(1, 1);
  for (int step = 0; step < 5; ++step) crowd.gate().renew(2);
  EXPECT_EQ(turnstile.waiting(), 1u);
  crowd.gate().renew(1);  // a tie: the other has waited longer
  EXPECT_EQ(turnstile.waiting(), 0u);
  EXPECT_THAT(crowd.open(), ElementsAre(1));
}

TEST(Turnstile, OneAtATimeAndNobodyIsForgotten) {
  Turnstile turnstile(0.1, 50);
  std::atomic<int> inside{0};
  uint64_t sum = 0;  // guarded by the turnstile alone
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 12; ++t) {
    threads.emplace_back([&, t] {
      std::optional<Turnstile::Pass> pass;
      for (int step = 0; step < 300; ++step) {
        if (step % 7 == 0) pass.reset();
        if (pass.has_value()) {
          pass->renew(t % 3);
        } else {
          pass.emplace(turnstile, t % 4);
        }
        EXPECT_EQ(inside.fetch_add(1), 0);
        ++sum;
        inside.fetch_sub(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, 12u * 300u);
}

}  // namespace
}  // namespace varve
