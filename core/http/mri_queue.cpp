#include "core/http/mri_queue.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

namespace varve::http {

MriQueue::MriQueue(size_t n_threads, size_t per_tenant_max, std::chrono::milliseconds tick_interval,
                   std::function<void()> tick)
    : per_tenant_max_(per_tenant_max),
      tick_interval_(tick_interval),
      tick_(std::move(tick)),
      next_tick_(Clock::now() + tick_interval) {
  for (size_t i = 0; i < n_threads; ++i) threads_.emplace_back([this] { work(); });
}

MriQueue::~MriQueue() {
  {
    const MutexLock lock(&mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status MriQueue::add(MriCall call) {
  {
    const MutexLock lock(&mutex_);
    size_t& n = n_by_tenant_[call.tenant];
    if (n >= per_tenant_max_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "found ", n, " MRI calls of this tenant waiting or running; expected fewer than ",
          per_tenant_max_, ": wait for their answers"));
    }
    ++n;
    waiting_.push_back(std::move(call));
  }
  changed_.notify_all();
  return absl::OkStatus();
}

std::list<MriCall>::iterator MriQueue::next() {
  std::set<uint64_t> taken = busy_;  // by running calls and by those that came before
  auto best = waiting_.end();
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    const bool is_free = std::none_of(it->contexts.begin(), it->contexts.end(),
                                      [&](uint64_t c) { return taken.contains(c); });
    taken.insert(it->contexts.begin(), it->contexts.end());
    if (is_free && (best == waiting_.end() || it->priority > best->priority)) best = it;
  }
  return best;
}

void MriQueue::work() {
  while (true) {
    MriCall call;
    bool is_tick = false;
    {
      const MutexLock lock(&mutex_);
      auto it = next();
      while (it == waiting_.end() && Clock::now() < next_tick_) {
        if (stop_ && waiting_.empty()) return;
        changed_.wait_until(mutex_, Clock::time_point(next_tick_));
        it = next();
      }
      if (it == waiting_.end()) {
        if (stop_ && waiting_.empty()) return;
        next_tick_ = Clock::now() + tick_interval_;
        is_tick = true;
      } else {
        call = std::move(*it);
        waiting_.erase(it);
        busy_.insert(call.contexts.begin(), call.contexts.end());
      }
    }
    if (is_tick) {
      tick_();
      continue;
    }
    std::function<void()> deliver;
    try {
      deliver = call.run();
    } catch (const std::exception&) {
      // No memory: the call's Responder, let go unanswered, says 500.
    }
    call.run = nullptr;  // what it holds is let go before others take its place
    {
      const MutexLock lock(&mutex_);
      for (const uint64_t context : call.contexts) busy_.erase(context);
      const auto n = n_by_tenant_.find(call.tenant);
      if (n != n_by_tenant_.end() && --n->second == 0) n_by_tenant_.erase(n);
    }
    changed_.notify_all();
    if (deliver) deliver();
  }
}

}  // namespace varve::http
