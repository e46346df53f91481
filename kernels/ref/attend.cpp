#include "kernels/attend.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ref/query.h"

namespace varve::kernels::ref {
namespace {

bool visible(const KvPage& page, size_t key, int64_t query_position) {
  if ((page.live_mask >> key & 1u) == 0) return false;
  const int64_t key_position =
      -int64_t{page.distance} * int64_t{kBlockTokens} + static_cast<int64_t>(key);
  return page.bias != nullptr || key_position <= query_position;
}

// Pages as f32: k, v [n_pages][32][head_dim].
struct Decoded {
  std::vector<float> k, v;
};

Decoded decode_pages(const KvPage* pages, size_t n_pages, size_t head_dim) {
  const size_t page_floats = kBlockTokens * head_dim;
  Decoded all{std::vector<float>(n_pages * page_floats), std::vector<float>(n_pages * page_floats)};
  for (size_t p = 0; p < n_pages; ++p) {
    if (pages[p].live_mask == 0) continue;  // may have no body
    decode(pages[p].format, pages[p].index, pages[p].body, head_dim, &all.k[p * page_floats],
           &all.v[p * page_floats]);
  }
  return all;
}

// The logits of query i, head g for every key of every page; -inf where the key is masked.
std::vector<double> logits_of(const QueryTile& tile, const KvPage* pages, size_t n_pages,
                              const Decoded& all, size_t i, size_t g) {
  const size_t head_dim = tile.rope->head_dim;
  std::vector<double> logits(n_pages * kBlockTokens, -INFINITY);
  std::vector<float> q(head_dim);
  for (size_t p = 0; p < n_pages; ++p) {
    rotated_query(tile, i, g, pages[p].distance, q.data());
    for (size_t t = 0; t < kBlockTokens; ++t) {
      if (!visible(pages[p], t, static_cast<int64_t>(tile.offset + i))) continue;
      const float* k = &all.k[(p * kBlockTokens + t) * head_dim];
      double dot = 0;
      for (size_t c = 0; c < head_dim; ++c) dot += double{q[c]} * k[c];
      const float bias = pages[p].bias != nullptr ? pages[p].bias[t] : 0.0f;
      logits[p * kBlockTokens + t] = tile.scale * dot + bias + pages[p].log_weight;
    }
  }
  return logits;
}

float weighted_mean(const std::vector<double>& logits, const std::vector<float>& v, size_t head_dim,
                    float* o) {
  std::vector<double> sum_v(head_dim, 0.0);
  double largest = -INFINITY, sum = 0;
  for (const double logit : logits) largest = std::max(largest, logit);
  if (largest > -INFINITY) {
    for (size_t t = 0; t < logits.size(); ++t) {
      const double p = std::exp(logits[t] - largest);
      if (p == 0) continue;
      sum += p;
      for (size_t c = 0; c < head_dim; ++c) sum_v[c] += p * v[t * head_dim + c];
    }
  }
  for (size_t c = 0; c < head_dim; ++c) {
    o[c] = sum > 0 ? static_cast<float>(sum_v[c] / sum) : 0.0f;
  }
  return static_cast<float>(largest + std::log(sum > 0 ? sum : 1.0));
}

}  // namespace

void attend(const QueryTile& tile, const KvPage* pages, size_t n_pages, float* o, size_t o_stride,
            float* lse, size_t lse_stride) {
  const size_t head_dim = tile.rope->head_dim;
  const Decoded all = decode_pages(pages, n_pages, head_dim);
  for (size_t i = 0; i < tile.n_queries; ++i) {
    for (size_t g = 0; g < tile.group; ++g) {
      const std::vector<double> logits = logits_of(tile, pages, n_pages, all, i, g);
      lse[i * lse_stride + g] =
          weighted_mean(logits, all.v, head_dim, o + i * o_stride + g * head_dim);
    }
  }
}

}  // namespace varve::kernels::ref
