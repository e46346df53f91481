// The lanes of a dispatcher, generation by generation: a reload that changes a stack makes another
// lane for it, and the one before lives on until nobody uses it any more.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/engine/lane.h"

namespace varve {

// Loaded by reloads, in a process: their libraries stay mapped.
inline constexpr uint32_t kGenerationsMax = 8;

// A lane and which of its stack's generations it is.
struct LaneInfo {
  std::string stack;
  uint32_t generation = 1;
  std::string digest;      // of model and stack
  bool is_current = true;  // new requests go there
  std::shared_ptr<Lane> lane;

  // "main"; of an earlier generation "main@1".
  std::string name() const;
};

// Thread-safe.
class Generations {
 public:
  Generations();
  // Waits until every lane has lost its last owner, and is closed.
  ~Generations();
  Generations(const Generations&) = delete;
  Generations& operator=(const Generations&) = delete;

  // Takes the lane over, as the next generation of its stack. The last owner of the result may let
  // go of it in any thread, also the lane's own: it is closed in a thread of this object.
  LaneInfo add(const std::string& stack, std::unique_ptr<Lane> lane, std::string digest);
  // All that somebody still owns, by stack, oldest first; is_current is false.
  std::vector<LaneInfo> alive() const;
  // Since the start.
  uint32_t n_added() const;

 private:
  struct Known {
    LaneInfo info;  // without the lane
    std::weak_ptr<Lane> lane;
  };

  std::unique_ptr<Lane> next();
  void close_lanes();

  mutable Mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Known> known_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, uint32_t> newest_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Lane>> to_close_ ABSL_GUARDED_BY(mutex_);
  uint32_t n_open_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t n_added_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stops_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: starts when all else is there
};

}  // namespace varve
