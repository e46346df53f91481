#include "core/batch/queue.h"

#include <algorithm>
#include <map>
#include <utility>

namespace varve {
namespace {

// Of the turns inside a priority, every such one goes to the oldest request.
constexpr uint64_t kOldestTurn = 8;
// Tenants that do not wait are remembered up to this many: those who were served most.
constexpr size_t kIdleTenantsMax = 1024;

bool is_older(const WaitingRequest& a, const WaitingRequest& b) {
  return a.arrived_us != b.arrived_us ? a.arrived_us < b.arrived_us : a.id < b.id;
}

}  // namespace

WaitQueue::Pushed WaitQueue::push(WaitingRequest request) {
  Pushed pushed;
  if (waiting_.size() >= options_.capacity) {
    if (request.is_shadow) return pushed;
    const auto newest = std::find_if(waiting_.rbegin(), waiting_.rend(),
                                     [](const WaitingRequest& r) { return r.is_shadow; });
    if (newest != waiting_.rend()) {
      pushed.dropped = newest->id;
      remove(static_cast<size_t>(waiting_.rend() - newest) - 1);
    }
    if (is_full_for(request)) return pushed;
  }
  insert(std::move(request));
  pushed.accepted = true;
  return pushed;
}

bool WaitQueue::is_full_for(const WaitingRequest& request) const {
  if (waiting_.size() < options_.capacity) return false;
  const auto is_lower = [&](const WaitingRequest& r) { return r.priority < request.priority; };
  const size_t reserve = std::max<size_t>(1, options_.capacity / 4);
  return waiting_.size() >= options_.capacity + reserve ||
         std::none_of(waiting_.begin(), waiting_.end(), is_lower);
}

void WaitQueue::put_back(WaitingRequest request) { insert(std::move(request)); }

void WaitQueue::insert(WaitingRequest request) {
  if (!has_waiting(request.tenant)) {
    uint64_t& served = served_[request.tenant];
    served = std::max(served, level());
  }
  const auto at = std::upper_bound(waiting_.begin(), waiting_.end(), request, is_older);
  waiting_.insert(at, std::move(request));
}

bool WaitQueue::erase(uint64_t id) {
  const auto it = std::find_if(waiting_.begin(), waiting_.end(),
                               [id](const WaitingRequest& r) { return r.id == id; });
  if (it == waiting_.end()) return false;
  remove(static_cast<size_t>(it - waiting_.begin()));
  return true;
}

void WaitQueue::remove(size_t i) {
  level_ = level();
  waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
  forget_idle();
}

std::vector<uint64_t> WaitQueue::take_expired(uint64_t now_us) {
  std::vector<uint64_t> expired;
  for (size_t i = 0; i < waiting_.size();) {
    if (waiting_[i].deadline_us > now_us) {
      ++i;
      continue;
    }
    expired.push_back(waiting_[i].id);
    remove(i);
  }
  return expired;
}

std::vector<const WaitingRequest*> WaitQueue::next(uint64_t now_us, size_t n) const {
  std::vector<const WaitingRequest*> order;
  std::vector<bool> taken(waiting_.size());
  Served served = served_;
  while (order.size() < n) {
    const std::optional<size_t> i = pick(now_us, taken, served, turn_ + order.size());
    if (!i.has_value()) break;
    taken[*i] = true;
    served[waiting_[*i].tenant] += waiting_[*i].cost_tokens;
    order.push_back(&waiting_[*i]);
  }
  return order;
}

bool WaitQueue::take(uint64_t id) {
  const auto it = std::find_if(waiting_.begin(), waiting_.end(),
                               [id](const WaitingRequest& r) { return r.id == id; });
  if (it == waiting_.end()) return false;
  ++turn_;
  const std::string tenant = it->tenant;
  const uint64_t cost = it->cost_tokens;
  level_ = level();
  waiting_.erase(it);
  charge(tenant, cost);
  return true;
}

void WaitQueue::charge(const std::string& tenant, uint64_t n_tokens) {
  uint64_t& served = served_.try_emplace(tenant, level_).first->second;
  served += std::min(n_tokens, UINT64_MAX - served);
  forget_idle();
}

bool WaitQueue::has_waiting(const std::string& tenant) const {
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [&](const WaitingRequest& r) { return r.tenant == tenant; });
}

uint64_t WaitQueue::level() const {
  uint64_t level = UINT64_MAX;
  for (const WaitingRequest& r : waiting_) level = std::min(level, served_.at(r.tenant));
  return waiting_.empty() ? level_ : std::max(level, level_);
}

// Whoever was served no more than the level and does not wait would start at the level anyway.
void WaitQueue::forget_idle() {
  if (served_.size() <= kIdleTenantsMax + waiting_.size()) return;
  std::vector<std::pair<uint64_t, std::string>> idle;
  for (const auto& [tenant, served] : served_) {
    if (!has_waiting(tenant)) idle.emplace_back(served, tenant);
  }
  std::sort(idle.begin(), idle.end());
  for (size_t i = 0; i < idle.size() && (i < idle.size() / 2 || idle[i].first <= level_); ++i) {
    served_.erase(idle[i].second);
  }
}

std::optional<size_t> WaitQueue::pick(uint64_t now_us, const std::vector<bool>& taken,
                                      const Served& served, uint64_t turn) const {
  // By priority, highest first: the oldest. waiting_ is in order of arrival.
  std::map<uint32_t, size_t, std::greater<>> oldest;
  std::optional<size_t> shadow;
  for (size_t i = 0; i < waiting_.size(); ++i) {
    if (taken[i]) continue;
    if (!waiting_[i].is_shadow) {
      oldest.emplace(waiting_[i].priority, i);
    } else if (!shadow.has_value()) {
      shadow = i;
    }
  }
  if (oldest.empty()) return shadow;
  const auto rank = [&](size_t i) {
    const uint64_t waited = now_us - std::min(now_us, waiting_[i].arrived_us);
    return waiting_[i].priority + (options_.ageing_us > 0 ? waited / options_.ageing_us : 0);
  };
  auto best = oldest.begin();
  for (auto it = oldest.begin(); it != oldest.end(); ++it) {
    if (rank(it->second) > rank(best->second)) best = it;
  }
  if (best != oldest.begin() || turn % kOldestTurn == kOldestTurn - 1) return best->second;
  size_t least = best->second;
  for (size_t i = 0; i < waiting_.size(); ++i) {
    const WaitingRequest& r = waiting_[i];
    if (taken[i] || r.is_shadow || r.priority != best->first) continue;
    if (served.at(r.tenant) < served.at(waiting_[least].tenant)) least = i;
  }
  return least;
}

}  // namespace varve
