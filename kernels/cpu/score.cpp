#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/attend.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/score.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "kernels/cpu/page-inl.h"

HWY_BEFORE_NAMESPACE();
namespace varve::kernels::HWY_NAMESPACE {

constexpr FullF df;
constexpr size_t kLanes = hn::MaxLanes(df);
constexpr size_t kAheadPages = 6;  // how far the index of a page is fetched before its use

// q . centre + |q| . radius of one page for rows of rotated q.
template <class D>
HWY_INLINE void radius_bounds(D d, const uint8_t* index, const float* q, size_t rows,
                              size_t head_dim, float* bounds, size_t stride) {
  for (size_t r = 0; r < rows; ++r) {
    auto sum = hn::Zero(d), spread = hn::Zero(d);
    for (size_t c = 0; c < head_dim; c += hn::Lanes(d)) {
      const auto step = load_f16(d, index, head_dim + c);
      const auto centre = hn::MulAdd(step, hn::Set(d, 127.5f), load_f16(d, index, c));
      const auto x = hn::LoadU(d, q + r * head_dim + c);
      sum = hn::MulAdd(x, centre, sum);
      spread = hn::MulAdd(hn::Abs(x), load_f16(d, index, 2 * head_dim + c), spread);
    }
    bounds[r * stride] = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum, spread)));
  }
}

// log of the sum of e^x over the live ones of 32 numbers.
HWY_INLINE float log_sum_exp(const float* x, uint32_t live_mask) {
  HWY_ALIGN float logits[kBlockTokens];
  for (size_t t = 0; t < kBlockTokens; ++t) {
    logits[t] = (live_mask >> t & 1u) != 0 ? x[t] : -INFINITY;
  }
  auto largest = hn::Set(df, -INFINITY);
  for (size_t t = 0; t < kBlockTokens; t += kLanes) {
    largest = hn::Max(largest, hn::Load(df, logits + t));
  }
  const float max = hn::GetLane(hn::MaxOfLanes(df, largest));
  auto sum = hn::Zero(df);
  for (size_t t = 0; t < kBlockTokens; t += kLanes) {
    sum = hn::Add(sum, exp_negative(df, hn::Sub(hn::Load(df, logits + t), hn::Set(df, max))));
  }
  return max + std::log(hn::GetLane(hn::SumOfLanes(df, sum)));
}

// The 32 codes of a channel's plane as floats.
HWY_INLINE void plane_floats(uint64_t plane, float* codes) {
  for (size_t t = 0; t < kBlockTokens; ++t) {
    codes[t] = static_cast<float>(plane >> (8 * (t % 8) + 2 * (t / 8)) & 3);
  }
}

template <class D>
HWY_INLINE void sketch_masses(D d, const KvPage& page, float* q, size_t rows, size_t head_dim,
                              float* masses, size_t stride) {
  const auto* planes = reinterpret_cast<const uint64_t*>(page.index + 6 * head_dim);
  HWY_ALIGN float logits[kBlockTokens], codes[kBlockTokens];
  for (size_t r = 0; r < rows; ++r) {
    float* x = q + r * head_dim;
    auto constant = hn::Zero(d);
    for (size_t c = 0; c < head_dim; c += hn::Lanes(d)) {
      const auto step = load_f16(d, page.index, head_dim + c);
      const auto base = hn::MulAdd(step, hn::Set(d, 31.5f), load_f16(d, page.index, c));
      const auto v = hn::LoadU(d, x + c);
      constant = hn::MulAdd(v, base, constant);
      hn::StoreU(hn::Mul(v, hn::Mul(step, hn::Set(d, 64.0f))), d, x + c);
    }
    std::fill_n(logits, kBlockTokens, hn::GetLane(hn::SumOfLanes(d, constant)));
    for (size_t c = 0; c < head_dim; ++c) {
      plane_floats(planes[c], codes);
      for (size_t t = 0; t < kBlockTokens; ++t) logits[t] += x[c] * codes[t];
    }
    masses[r * stride] = log_sum_exp(logits, page.live_mask);
  }
}

// masses [n] -> added to scores as a softmax.
HWY_INLINE void add_softmax(float* masses, size_t n, float* scores) {
  float max = -INFINITY;
  for (size_t p = 0; p < n; ++p) max = std::max(max, masses[p]);
  if (!(max > -INFINITY)) return;
  auto sum = hn::Zero(df);
  for (size_t p = 0; p < n; p += kLanes) {  // masses are padded with -inf
    const auto e = exp_negative(df, hn::Sub(hn::LoadU(df, masses + p), hn::Set(df, max)));
    hn::StoreU(e, df, masses + p);
    sum = hn::Add(sum, e);
  }
  const float inverse = 1.0f / hn::GetLane(hn::SumOfLanes(df, sum));
  for (size_t p = 0; p < n; ++p) scores[p] += masses[p] * inverse;
}

template <class D>
void page_masses(D d, const QueryTile& tile, const KvPage& page, Score how, const float* q,
                 float* q_page, size_t rows, float* masses, size_t stride) {
  const size_t head_dim = tile.rope->head_dim;
  if (page.live_mask == 0) {
    for (size_t r = 0; r < rows; ++r) masses[r * stride] = -INFINITY;
    return;
  }
  for (size_t r = 0; r < rows; ++r) {
    rotate_coarse(*tile.rope, q + r * head_dim, page.distance, q_page + r * head_dim);
  }
  float extra = page.log_weight;
  if (how == Score::kRadius) {
    extra += std::log(static_cast<float>(std::popcount(page.live_mask)));
    radius_bounds(d, page.index, q_page, rows, head_dim, masses, stride);
  } else {
    sketch_masses(d, page, q_page, rows, head_dim, masses, stride);
  }
  for (size_t r = 0; r < rows; ++r) masses[r * stride] += extra;
}

void score_pages(const QueryTile& tile, const KvPage* pages, size_t n_pages, Score how,
                 uint32_t query_step, float* scores) {
  thread_local std::vector<float> scratch;
  const size_t head_dim = tile.rope->head_dim, step = std::max(query_step, 1u);
  const size_t rows = (tile.n_queries + step - 1) / step * tile.group;
  const size_t stride = (n_pages + kLanes - 1) / kLanes * kLanes;
  scratch.resize(rows * (2 * head_dim + stride));
  float* q = scratch.data();
  float* q_page = q + rows * head_dim;
  float* masses = q_page + rows * head_dim;
  std::fill_n(scores, n_pages, 0.0f);
  std::fill_n(masses, rows * stride, -INFINITY);
  load_queries(tile, step, q);
  with_channel_tag(head_dim, [&](auto d) {
    for (size_t p = 0; p < n_pages; ++p) {
      if (p + kAheadPages < n_pages) {
        for (size_t b = 0; b < 6 * head_dim; b += 64)
          hwy::Prefetch(pages[p + kAheadPages].index + b);
      }
      page_masses(d, tile, pages[p], how, q, q_page, rows, masses + p, stride);
    }
  });
  for (size_t r = 0; r < rows; ++r) add_softmax(masses + r * stride, n_pages, scores);
}

}  // namespace varve::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace varve::kernels::cpu {

HWY_EXPORT(score_pages);

void score_pages(const QueryTile& tile, const KvPage* pages, size_t n_pages, Score how,
                 uint32_t query_step, float* scores) {
  HWY_DYNAMIC_DISPATCH(score_pages)(tile, pages, n_pages, how, query_step, scores);
}

}  // namespace varve::kernels::cpu
#endif
