// page_fetch.h: inside attend_rows. Brings pages near while others are computed, a few lines at a
// time: a whole page at once would wait for memory, and then memory for the computation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attend.h"

namespace varve::kernels::cpu {

// The keys or the values of a page; page null: nothing.
struct HalfPage {
  const KvPage* page = nullptr;
  bool is_values = false;
};

// Number n in the order in which batches of pages read them: all keys of a batch, then its values.
inline HalfPage half_of(const std::vector<const KvPage*>& pages, size_t batch_pages, size_t n) {
  const size_t first = n / (2 * batch_pages) * batch_pages, i = n % (2 * batch_pages);
  if (first >= pages.size()) return {};
  const size_t in_batch = std::min(batch_pages, pages.size() - first);
  if (i >= 2 * in_batch) return {};
  return {pages[first + i % in_batch], i >= in_batch};
}

class PageFetch {
 public:
  // Asks for the rest of the half page before, and takes up this one.
  void set(const HalfPage& half, size_t head_dim) {
    lines(SIZE_MAX);
    lines(SIZE_MAX);
    at_ = end_ = next_ = next_end_ = nullptr;
    if (half.page == nullptr) return;
    const KvPage& page = *half.page;
    const bool is_int8 = page.format == KvFormat::kInt8;
    const size_t bytes = body_bytes(page.format, head_dim);
    const size_t key_bytes = is_int8 ? 24 * head_dim : bytes / 2;
    at_ = page.body + (half.is_values ? key_bytes : 0);
    end_ = page.body + (half.is_values ? bytes : key_bytes);
    if (!is_int8 || half.is_values) return;
    next_ = page.index;
    next_end_ = page.index + 14 * head_dim;
  }

  // Asks for the next n lines, if there are any.
  [[gnu::always_inline]] inline void lines(size_t n) {
    for (; n > 0 && at_ < end_; --n, at_ += 64) __builtin_prefetch(at_);
    if (at_ < end_ || next_ == nullptr) return;
    at_ = next_;
    end_ = next_end_;
    next_ = nullptr;
  }

 private:
  const uint8_t *at_ = nullptr, *end_ = nullptr;  // of the body
  const uint8_t *next_ = nullptr, *next_end_ = nullptr;
};

}  // namespace varve::kernels::cpu
