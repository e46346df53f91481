#include "memory.h"

namespace hybrid {
namespace {

constexpr size_t kContextsMax = 256;

}  // namespace

std::shared_ptr<Memory::Shortlists> Memory::of(uint64_t context, size_t n) {
  const std::lock_guard lock(mutex_);
  const auto found = contexts_.find(context);
  if (found != contexts_.end()) {
    order_.splice(order_.begin(), order_, found->second.place);
    if (found->second.shortlists->size() < n) found->second.shortlists->resize(n);
    return found->second.shortlists;
  }
  if (contexts_.size() >= kContextsMax) {
    contexts_.erase(order_.back());
    order_.pop_back();
  }
  order_.push_front(context);
  const auto made =
      contexts_.emplace(context, Entry{std::make_shared<Shortlists>(n), order_.begin()});
  return made.first->second.shortlists;
}

}  // namespace hybrid
