// What was chosen for a context in earlier steps. Of an answer, what the bound kept: the blocks
// that are worth ranking hardly change from one token to the next. Of a prompt that is read in
// pieces, what its tile reads: pieces of a tile share one choice.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace hybrid {

// One (layer, KV head) of a context. Used by one thread at a time: a context is in one step at a
// time, and a step in one layer.
struct Remembered {
  uint64_t position = UINT64_MAX;     // of the query it was made for; UINT64_MAX: never
  std::vector<uint32_t> blocks;       // in text order
  uint32_t window_first = kOfAnswer;  // of a prompt's tile: the window's first block
  static constexpr uint32_t kOfAnswer = UINT32_MAX;
  std::vector<uint32_t> chosen;  // by the last query that was timed, in text order
};

// Thread-safe. Keeps the contexts used last.
class Memory {
 public:
  using Shortlists = std::vector<Remembered>;

  // The shortlists of a context, made with `n` slots when new or of another size.
  std::shared_ptr<Shortlists> of(uint64_t context, size_t n);

 private:
  using Order = std::list<uint64_t>;
  struct Entry {
    std::shared_ptr<Shortlists> shortlists;
    Order::iterator place;
  };

  std::mutex mutex_;
  Order order_;  // most recent first
  std::unordered_map<uint64_t, Entry> contexts_;
};

}  // namespace hybrid
