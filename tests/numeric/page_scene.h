// page_scene.h: random queries and pages for the tests and benchmarks of attention and page scores.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <random>
#include <string_view>
#include <vector>

#include "kernels/attend.h"

namespace varve::kernels {

inline constexpr std::string_view kTargetNames[] = {"sse2", "avx2", "avx512", "best"};

class PageScene {
 public:
  static constexpr uint32_t kFine = 256, kCoarse = 2048;

  PageScene(uint32_t head_dim, uint32_t rotary_dim, uint32_t n_queries, uint32_t group,
            uint32_t offset = 0, uint32_t seed = 1)
      : head_dim_(head_dim), random_(seed) {
    const size_t half = rotary_dim / 2;
    fill_angles(kFine, half, 1.0, fine_cos_, fine_sin_);
    fill_angles(kCoarse, half, kBlockTokens, coarse_cos_, coarse_sin_);
    rope_ = {fine_cos_.data(), fine_sin_.data(), coarse_cos_.data(), coarse_sin_.data(), kFine,
             kCoarse,          head_dim,         rotary_dim};
    q_ = normal(size_t{n_queries} * (group * head_dim + 8));
    tile_ = {q_.data(),
             group * head_dim + 8,  // rows of queries need not touch
             n_queries,
             group,
             offset,
             1.0f / std::sqrt(static_cast<float>(head_dim)),
             Compute::kF32,
             &rope_};
  }

  PageScene(const PageScene&) = delete;
  PageScene& operator=(const PageScene&) = delete;

  std::vector<float> normal(size_t n) {
    std::normal_distribution<float> distribution;
    std::vector<float> x(n);
    std::generate(x.begin(), x.end(), [&] { return distribution(random_); });
    return x;
  }

  KvPage& add_page(KvFormat format, int32_t distance, uint32_t live_mask = ~0u) {
    const std::vector<float> k = normal(kBlockTokens * head_dim_);
    const std::vector<float> v = normal(kBlockTokens * head_dim_);
    bytes_.emplace_back(8 + index_bytes(head_dim_) + body_bytes(format, head_dim_));
    uint8_t* index = bytes_.back().data() + 8;  // aligned to 8, not more
    uint8_t* body = index + index_bytes(head_dim_);
    ref::make_index(k.data(), live_mask, head_dim_, index);
    ref::encode(format, k.data(), v.data(), head_dim_, index, body);
    pages_.push_back({index, body, nullptr, live_mask, format, distance, 0.0f});
    return pages_.back();
  }

  void add_bias(KvPage& page) {
    biases_.push_back(normal(kBlockTokens));
    biases_.back()[3] = -INFINITY;
    page.bias = biases_.back().data();
  }

  // n pages at distances that fall to 0, with some masks.
  void add_pages(size_t n, KvFormat format) {
    for (size_t p = 0; p < n; ++p) {
      const uint32_t live_mask = p % 5 == 3 ? 0x80f0a00du : p % 11 == 7 ? 0u : ~0u;
      add_page(format, static_cast<int32_t>(n - 1 - p), live_mask);
    }
  }

  const QueryTile& tile() const { return tile_; }
  QueryTile& tile() { return tile_; }
  const std::vector<KvPage>& pages() const { return pages_; }
  size_t rows() const { return size_t{tile_.n_queries} * tile_.group; }
  uint32_t head_dim() const { return head_dim_; }

 private:
  static void fill_angles(size_t n, size_t half, double unit, std::vector<float>& cos,
                          std::vector<float>& sin) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t c = 0; c < half; ++c) {
        const double frequency =
            std::pow(10000.0, -static_cast<double>(c) / static_cast<double>(half));
        const double angle = static_cast<double>(i) * unit * frequency;
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }

  uint32_t head_dim_;
  std::mt19937 random_;
  std::vector<float> fine_cos_, fine_sin_, coarse_cos_, coarse_sin_, q_;
  RopeTable rope_{};
  QueryTile tile_{};
  std::deque<std::vector<uint8_t>> bytes_;
  std::deque<std::vector<float>> biases_;
  std::vector<KvPage> pages_;
};

}  // namespace varve::kernels
