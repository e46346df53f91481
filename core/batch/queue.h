// The requests that wait for a place in a lane, and who is next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace varve {

// A request as the queue sees it. Times are microseconds of one clock that never goes back.
struct WaitingRequest {
  uint64_t id = 0;  // differs between all that wait
  std::string tenant;
  uint32_t priority = 0;  // larger is served first
  bool is_shadow = false;
  uint64_t cost_tokens = 1;  // what the tenant is charged for when the request is served
  uint64_t arrived_us = 0;
  uint64_t deadline_us = UINT64_MAX;
};

struct QueueOptions {
  // A quarter more (at least one) is for requests of higher priority than somebody who waits: a
  // flood does not shut the urgent out.
  size_t capacity = 48;
  // Each such wait raises a request's priority by one; 0: never.
  uint64_t ageing_us = 10'000'000;
};

// Order of service:
//  1. Shadow requests only when nothing else waits.
//  2. Between priorities the one whose oldest request has the highest priority plus age; the higher
//     priority on a tie. A priority that wins by age alone is served its oldest request.
//  3. Inside a priority the tenant that was served the fewest tokens, its oldest request first;
//     every eighth turn goes to the oldest request of the priority, so that no number of newly
//     arriving tenants starves an old one. A tenant that comes back after a pause starts level with
//     those who wait: idle time earns nothing.
// Not thread-safe; the clock is the caller's.
class WaitQueue {
 public:
  explicit WaitQueue(QueueOptions options) : options_(options) {}

  struct Pushed {
    bool accepted = false;
    std::optional<uint64_t> dropped;  // a shadow request that made room
  };
  // Refused when the queue is full for it, unless a shadow request can go for one that is none.
  Pushed push(WaitingRequest request);
  // One that was taken before and comes back: always accepted, also over the capacity.
  void put_back(WaitingRequest request);
  bool erase(uint64_t id);  // cancelled; false: not here
  // Removes those whose deadline is not after `now_us` and returns their ids.
  std::vector<uint64_t> take_expired(uint64_t now_us);

  // The next n to be served, in order; nothing changes.
  std::vector<const WaitingRequest*> next(uint64_t now_us, size_t n) const;
  // Removes `id`, which is served now, and charges its tenant. False: not here.
  bool take(uint64_t id);
  // Tokens beyond those that take() charged.
  void charge(const std::string& tenant, uint64_t n_tokens);

  size_t size() const { return waiting_.size(); }
  size_t capacity() const { return options_.capacity; }
  void set_capacity(size_t capacity) { options_.capacity = capacity; }
  const std::vector<WaitingRequest>& waiting() const { return waiting_; }  // in order of arrival
  size_t n_tenants() const { return served_.size(); }                      // remembered

 private:
  using Served = std::unordered_map<std::string, uint64_t>;

  void insert(WaitingRequest request);
  void remove(size_t i);
  bool is_full_for(const WaitingRequest& request) const;
  uint64_t level() const;  // fewest tokens that a waiting tenant was served
  void forget_idle();
  bool has_waiting(const std::string& tenant) const;
  // Index of the next to be served among those not `taken`; nothing when all are.
  std::optional<size_t> pick(uint64_t now_us, const std::vector<bool>& taken, const Served& served,
                             uint64_t turn) const;

  QueueOptions options_;
  std::vector<WaitingRequest> waiting_;  // in order of arrival
  Served served_;                        // tokens by tenant, on a scale that level() moves along
  uint64_t level_ = 0;                   // last known
  uint64_t turn_ = 0;
};

}  // namespace varve
