#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/attend.h"
#include "kernels/number.h"
#include "kernels/ref/query.h"

namespace varve::kernels::ref {
namespace {

float index_f16(const uint8_t* index, size_t i) {
  uint16_t half;
  std::memcpy(&half, index + 2 * i, sizeof half);
  return f32_from_f16(half);
}

double log_mass_by_radius(const float* q, const KvPage& page, size_t head_dim, float scale) {
  double bound = 0;
  for (size_t c = 0; c < head_dim; ++c) {
    const double k_min = index_f16(page.index, c), k_step = index_f16(page.index, head_dim + c);
    const double centre = k_min + 127.5 * k_step;
    const double radius = index_f16(page.index, 2 * head_dim + c);
    bound += std::max(q[c] * (centre - radius), q[c] * (centre + radius));
  }
  return std::log(std::popcount(page.live_mask)) + scale * bound;
}

double sketch_logit(const float* q, const KvPage& page, size_t head_dim, float scale, size_t t) {
  double dot = 0;
  for (size_t c = 0; c < head_dim; ++c) {
    uint64_t plane;
    std::memcpy(&plane, page.index + 6 * head_dim + 8 * c, sizeof plane);
    const double bucket = static_cast<double>(plane >> (8 * (t % 8) + 2 * (t / 8)) & 3u);
    const double k_min = index_f16(page.index, c), k_step = index_f16(page.index, head_dim + c);
    dot += q[c] * (k_min + (64 * bucket + 31.5) * k_step);
  }
  return scale * dot;
}

double log_mass_by_sketch(const float* q, const KvPage& page, size_t head_dim, float scale) {
  double logits[kBlockTokens];
  double largest = -INFINITY, sum = 0;
  for (size_t t = 0; t < kBlockTokens; ++t) {
    const bool live = (page.live_mask >> t & 1u) != 0;
    logits[t] = live ? sketch_logit(q, page, head_dim, scale, t) : -INFINITY;
    largest = std::max(largest, logits[t]);
  }
  for (const double logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

double log_mass(const float* q, const KvPage& page, Score how, size_t head_dim, float scale) {
  if (page.live_mask == 0) return -INFINITY;
  const double mass = how == Score::kRadius ? log_mass_by_radius(q, page, head_dim, scale)
                                            : log_mass_by_sketch(q, page, head_dim, scale);
  return mass + page.log_weight;
}

void add_softmax(const std::vector<double>& masses, float* scores) {
  double largest = -INFINITY, sum = 0;
  for (const double mass : masses) largest = std::max(largest, mass);
  if (!(largest > -INFINITY)) return;
  for (const double mass : masses) sum += std::exp(mass - largest);
  for (size_t p = 0; p < masses.size(); ++p) {
    scores[p] += static_cast<float>(std::exp(masses[p] - largest) / sum);
  }
}

}  // namespace

void score_pages(const QueryTile& tile, const KvPage* pages, size_t n_pages, Score how,
                 uint32_t query_step, float* scores) {
  const size_t head_dim = tile.rope->head_dim;
  std::fill_n(scores, n_pages, 0.0f);
  std::vector<float> q(head_dim);
  std::vector<double> masses(n_pages);
  for (size_t i = 0; i < tile.n_queries; i += std::max(query_step, 1u)) {
    for (size_t g = 0; g < tile.group; ++g) {
      for (size_t p = 0; p < n_pages; ++p) {
        rotated_query(tile, i, g, pages[p].distance, q.data());
        masses[p] = log_mass(q.data(), pages[p], how, head_dim, tile.scale);
      }
      add_softmax(masses, scores);
    }
  }
}

}  // namespace varve::kernels::ref
