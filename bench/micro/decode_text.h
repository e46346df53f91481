// decode_text.h: the pages that one decoded token of a small model reads, laid out as a cache of
// blocks is: [block][layer and KV head][index, body].
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/peak.h"
#include "tests/numeric/page_scene.h"

namespace varve::kernels {

class DecodeText {
 public:
  static constexpr uint32_t kDim = 64, kGroup = 3;

  // n_heads counts (layer, KV head) pairs; 1 stays in the caches, 90 is a model of 135M parameters.
  DecodeText(size_t n_heads, size_t n_pages, KvFormat format)
      : scene_(kDim, kDim, 1, kGroup, 17), n_heads_(n_heads), n_pages_(n_pages) {
    for (int i = 0; i < 8; ++i) scene_.add_page(format, 0);  // a few pages, repeated
    const size_t index_size = index_bytes(kDim), body_size = body_bytes(format, kDim);
    index_.resize(n_heads * n_pages * index_size);
    body_.resize(n_heads * n_pages * body_size);
    pages_.resize(n_heads * n_pages);
    for (size_t p = 0; p < n_pages; ++p) {
      for (size_t h = 0; h < n_heads; ++h) {
        KvPage page = scene_.pages()[(p + h) % 8];
        uint8_t* index = &index_[(p * n_heads + h) * index_size];
        uint8_t* body = &body_[(p * n_heads + h) * body_size];
        std::copy_n(page.index, index_size, index);
        std::copy_n(page.body, body_size, body);
        page.index = index;
        page.body = body;
        page.distance = static_cast<int32_t>(n_pages - 1 - p);
        pages_[h * n_pages + p] = page;
      }
    }
  }

  const KvPage* pages(size_t head) const { return &pages_[head * n_pages_]; }
  const QueryTile& tile() const { return scene_.tile(); }
  size_t n_heads() const { return n_heads_; }
  size_t n_pages() const { return n_pages_; }

 private:
  PageScene scene_;
  size_t n_heads_, n_pages_;
  std::vector<uint8_t> index_, body_;
  std::vector<KvPage> pages_;
};

// Bytes per second that one core reads from memory.
inline double memory_bandwidth() {
  static const double bandwidth = [] {
    const std::vector<uint8_t> data(size_t{256} << 20, 1);
    const size_t skip = (64 - reinterpret_cast<uintptr_t>(data.data()) % 64) % 64;
    return measure_read_bandwidth(data.data() + skip, data.size() - 64, 0.3);
  }();
  return bandwidth;
}

}  // namespace varve::kernels
