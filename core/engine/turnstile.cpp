#include "core/engine/turnstile.h"

#include <algorithm>

namespace varve {

Turnstile::Turnstile(double share_min, uint64_t ageing_us)
    : share_min_(std::clamp(share_min, 0.0, 1.0)), ageing_us_(ageing_us) {}

Turnstile::Pass::Pass(Turnstile& turnstile, uint32_t priority) : turnstile_(turnstile) {
  turnstile_.line_up(priority, false);
}

Turnstile::Pass::~Pass() {
  const MutexLock lock(&turnstile_.mutex_);
  turnstile_.hand_over();
}

void Turnstile::Pass::renew(uint32_t priority) { turnstile_.line_up(priority, true); }

size_t Turnstile::waiting() const {
  const MutexLock lock(&mutex_);
  return waiters_.size();
}

void Turnstile::line_up(uint32_t priority, bool holds_turn) {
  Waiter waiter{priority, Clock::now(), false, {}};
  const MutexLock lock(&mutex_);
  waiters_.push_back(&waiter);
  if (holds_turn || !is_taken_) hand_over();
  while (!waiter.has_turn) waiter.turn.wait(mutex_);
}

// Notifies under the lock: the waiter lives on the stack of the one who is woken.
void Turnstile::hand_over() {
  is_taken_ = !waiters_.empty();
  if (!is_taken_) return;
  const size_t i = next();
  Waiter* waiter = waiters_[i];
  waiters_.erase(waiters_.begin() + static_cast<std::ptrdiff_t>(i));
  waiter->has_turn = true;
  waiter->turn.notify_one();
}

size_t Turnstile::next() {
  if (waiters_.size() == 1) return 0;
  owed_ += share_min_;
  if (owed_ >= 1) {
    owed_ -= 1;
    return 0;
  }
  const auto now = Clock::now();
  const auto rank = [&](const Waiter& w) -> uint64_t {
    const auto waited = std::chrono::duration_cast<std::chrono::microseconds>(now - w.since);
    const auto us = static_cast<uint64_t>(std::max<int64_t>(0, waited.count()));
    return w.priority + (ageing_us_ > 0 ? us / ageing_us_ : 0);
  };
  size_t best = 0;
  for (size_t i = 1; i < waiters_.size(); ++i) {
    if (rank(*waiters_[i]) > rank(*waiters_[best])) best = i;
  }
  return best;
}

}  // namespace varve
