#include "core/route/generations.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace varve {

std::string LaneInfo::name() const {
  return is_current ? stack : absl::StrCat(stack, "@", generation);
}

Generations::Generations() : thread_([this] { close_lanes(); }) {}

Generations::~Generations() {
  {
    const MutexLock lock(&mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

LaneInfo Generations::add(const std::string& stack, std::unique_ptr<Lane> lane,
                          std::string digest) {
  const auto let_go = [this](Lane* closed) {
    {
      const MutexLock lock(&mutex_);
      to_close_.emplace_back(closed);
    }
    changed_.notify_all();
  };
  const MutexLock lock(&mutex_);
  ++n_open_;
  ++n_added_;
  Known known{{stack, ++newest_[stack], std::move(digest), false, nullptr}, {}};
  LaneInfo info = known.info;
  info.is_current = true;
  info.lane = std::shared_ptr<Lane>(lane.release(), let_go);
  known.lane = info.lane;
  known_.push_back(std::move(known));
  return info;
}

std::vector<LaneInfo> Generations::alive() const {
  std::vector<LaneInfo> all;
  {
    const MutexLock lock(&mutex_);
    for (const Known& known : known_) {
      all.push_back(known.info);
      all.back().lane = known.lane.lock();
    }
  }
  const auto is_gone = [](const LaneInfo& info) { return info.lane == nullptr; };
  all.erase(std::remove_if(all.begin(), all.end(), is_gone), all.end());
  std::stable_sort(all.begin(), all.end(),
                   [](const LaneInfo& a, const LaneInfo& b) { return a.stack < b.stack; });
  return all;
}

uint32_t Generations::n_added() const {
  const MutexLock lock(&mutex_);
  return n_added_;
}

// Nothing at the end.
std::unique_ptr<Lane> Generations::next() {
  const MutexLock lock(&mutex_);
  while (to_close_.empty() && !(stops_ && n_open_ == 0)) changed_.wait(mutex_);
  if (to_close_.empty()) return nullptr;
  std::unique_ptr<Lane> lane = std::move(to_close_.back());
  to_close_.pop_back();
  return lane;
}

void Generations::close_lanes() {
  while (std::unique_ptr<Lane> lane = next()) {
    lane.reset();
    const MutexLock lock(&mutex_);
    --n_open_;
  }
}

}  // namespace varve
