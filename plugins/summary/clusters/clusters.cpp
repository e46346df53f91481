// A segment's summary: a few heavy tokens exactly, and k-means clusters of like keys for the rest
// (mean key, mean value, ln of the count). Means of neighbouring tokens would harm; means of like
// keys help.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "mri/sdk/summary.hpp"

namespace {

constexpr uint32_t kSeedRows = 256;  // enough to find a few dozen centres

// Rows [n][dim], and the k-means centres of some of them.
class Clustering {
 public:
  Clustering(const mri_kernels_v1& kernels, std::vector<float> rows, uint32_t dim,
             uint32_t n_clusters)
      : kernels_(kernels),
        rows_(std::move(rows)),
        dim_(dim),
        n_(static_cast<uint32_t>(rows_.size() / dim)),
        n_clusters_(n_clusters),
        centres_(size_t{n_clusters} * dim),
        of_(n_),
        norm_(n_),
        best_(n_),
        distance_(n_),
        products_(size_t{n_} * n_clusters) {
    for (uint32_t i = 0; i < n_; ++i) norm_[i] = dot(row(i), row(i));
  }

  // k-means++ on a sample of the rows: each further centre is a row drawn with probability
  // proportional to its squared distance from the nearest one.
  void seed(uint64_t random) {
    const uint32_t step = std::max(1u, n_ / kSeedRows), n = (n_ + step - 1) / step;
    std::fill_n(distance_.begin(), n, INFINITY);
    uint32_t pick = static_cast<uint32_t>(next(random) % n);
    for (uint32_t c = 0; c < n_clusters_; ++c) {
      const float* centre = row(pick * step);
      std::copy_n(centre, dim_, &centres_[size_t{c} * dim_]);
      double total = 0;
      for (uint32_t i = 0; i < n; ++i) {
        const float d = norm_[i * step] - 2 * dot(row(i * step), centre) + norm_[pick * step];
        distance_[i] = std::max(0.f, std::min(distance_[i], d));
        total += distance_[i];
      }
      pick = draw(n, total, next(random));
    }
  }

  void centre(const std::vector<float>& centres) { centres_ = centres; }

  // Assigns and averages `iterations` times; then of() and distance() belong to the last centres.
  void iterate(uint32_t iterations) {
    for (uint32_t i = 0; i < iterations; ++i) {
      assign();
      average(rows_.data(), dim_, centres_);
    }
    assign();
  }

  // Means of `values` [n][dim] by cluster; empty clusters keep what is in `means`. Returns the
  // counts.
  std::vector<uint32_t> average(const float* values, uint32_t dim,
                                std::vector<float>& means) const {
    std::vector<uint32_t> counts(n_clusters_);
    std::vector<float> sums(size_t{n_clusters_} * dim);
    for (uint32_t i = 0; i < n_; ++i) {
      ++counts[of_[i]];
      float* sum = &sums[size_t{of_[i]} * dim];
      for (uint32_t c = 0; c < dim; ++c) sum[c] += values[size_t{i} * dim + c];
    }
    for (uint32_t j = 0; j < n_clusters_; ++j) {
      if (counts[j] == 0) continue;
      const float scale = 1 / static_cast<float>(counts[j]);
      for (uint32_t c = 0; c < dim; ++c)
        means[size_t{j} * dim + c] = sums[size_t{j} * dim + c] * scale;
    }
    return counts;
  }

  const std::vector<float>& rows() const { return rows_; }
  const std::vector<float>& centres() const { return centres_; }
  const std::vector<float>& distance() const { return distance_; }

 private:
  // Nearest centre: the largest k.c - |c|^2 / 2. The inner loop runs over rows, so that it
  // vectorises.
  void assign() {
    kernels_.matmul_nt(kernels_.self, n_clusters_, n_, dim_, centres_.data(), rows_.data(),
                       products_.data());
    std::fill(of_.begin(), of_.end(), 0);
    std::fill(best_.begin(), best_.end(), -INFINITY);
    uint32_t* const of = of_.data();
    float* const best = best_.data();
    const uint32_t n = n_;
    for (uint32_t c = 0; c < n_clusters_; ++c) {
      const float* centre = &centres_[size_t{c} * dim_];
      const float* product = &products_[size_t{c} * n_];
      const float half = dot(centre, centre) / 2;
      for (uint32_t i = 0; i < n; ++i) {
        const float score = product[i] - half, before = best[i];
        const uint32_t of_before = of[i];
        of[i] = score > before ? c : of_before;
        best[i] = score > before ? score : before;
      }
    }
    for (uint32_t i = 0; i < n_; ++i) distance_[i] = norm_[i] - 2 * best_[i];
  }

  uint32_t draw(uint32_t n, double total, uint64_t random) const {
    double left = total * (static_cast<double>(random >> 11) * 0x1p-53);
    for (uint32_t i = 0; i < n; ++i) {
      left -= distance_[i];
      if (left < 0) return i;
    }
    return static_cast<uint32_t>(random % n);  // all rows alike, or not finite
  }

  static uint64_t next(uint64_t& state) {  // splitmix64
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  const float* row(uint32_t i) const { return &rows_[size_t{i} * dim_]; }

  float dot(const float* a, const float* b) const {
    float lanes[8] = {};  // the compiler may not reorder a single sum
    uint32_t c = 0;
    for (; c + 8 <= dim_; c += 8) {
      for (uint32_t l = 0; l < 8; ++l) lanes[l] += a[c + l] * b[c + l];
    }
    float sum = 0;
    for (; c < dim_; ++c) sum += a[c] * b[c];
    for (const float lane : lanes) sum += lane;
    return sum;
  }

  const mri_kernels_v1& kernels_;
  std::vector<float> rows_;
  uint32_t dim_, n_, n_clusters_;
  std::vector<float> centres_;
  std::vector<uint32_t> of_;
  std::vector<float> norm_, best_, distance_, products_;
};

class Clusters {
 public:
  Clusters(const mri::Host& host, const mri::Params& params)
      : kernels_(host.kernels()),
        heavy_(params.get<uint32_t>("heavy_tokens_per_segment")),
        clusters_(params.get<uint32_t>("clusters_per_segment")),
        iterations_(params.get<uint32_t>("iterations")) {}

  static void caps(mri_caps& caps) {
    caps.thread_model = 3;
    caps.determinism = 2;
  }

  uint32_t pairs_max(uint32_t n_tokens) const { return std::min(n_tokens, heavy_ + clusters_); }

  void make(const mri_summary_make_req& req, mri_summary_make_rsp& rsp) const {
    rsp.n_pairs = 0;
    if (req.head_dim == 0) throw mri::Error(MRI_E_ARG, "clusters: head_dim is 0");
    const uint32_t most = pairs_max(req.n_tokens);
    if (rsp.pairs_capacity < most) {
      rsp.n_pairs = most;
      throw mri::Error(MRI_E_SPACE, "clusters: room for " + std::to_string(rsp.pairs_capacity) +
                                        " pairs, needs " + std::to_string(most));
    }
    if (most == req.n_tokens) {
      for (uint32_t t = 0; t < req.n_tokens; ++t) keep(req, t, rsp);
      return;
    }
    std::vector<float> centres;
    const std::vector<uint32_t> heavy = heavy_tokens(req, centres);
    for (const uint32_t t : heavy) keep(req, t, rsp);
    if (clusters_ > 0) add_clusters(req, heavy, centres, rsp);
  }

 private:
  // The tokens that got most attention, or without that measure those with the most unusual keys,
  // in text order. `centres` are those of all keys when they had to be found.
  std::vector<uint32_t> heavy_tokens(const mri_summary_make_req& req,
                                     std::vector<float>& centres) const {
    std::vector<uint32_t> heavy(heavy_);
    const float* weight = req.mass;
    std::vector<float> distance;
    if (weight == nullptr && heavy_ > 0) {
      std::vector<float> keys(req.k, req.k + size_t{req.n_tokens} * req.head_dim);
      Clustering all(kernels_, std::move(keys), req.head_dim, std::max(clusters_, 1u));
      all.seed(req.seed);
      all.iterate(iterations_);
      centres = all.centres();
      distance = all.distance();
      weight = distance.data();
    }
    if (heavy_ > 0)
      heavy.resize(kernels_.top_k(kernels_.self, weight, req.n_tokens, heavy_, heavy.data()));
    return heavy;
  }

  void add_clusters(const mri_summary_make_req& req, const std::vector<uint32_t>& heavy,
                    const std::vector<float>& centres, mri_summary_make_rsp& rsp) const {
    const size_t dim = req.head_dim;
    std::vector<float> keys, values;
    for (uint32_t t = 0, h = 0; t < req.n_tokens; ++t) {
      if (h < heavy.size() && heavy[h] == t) {
        ++h;
        continue;
      }
      keys.insert(keys.end(), req.k + t * dim, req.k + (t + 1) * dim);
      values.insert(values.end(), req.v + t * dim, req.v + (t + 1) * dim);
    }
    Clustering rest(kernels_, std::move(keys), req.head_dim, clusters_);
    if (centres.empty()) {
      rest.seed(req.seed);
      rest.iterate(iterations_);
    } else {  // nearly there
      rest.centre(centres);
      rest.iterate(1);
    }
    std::vector<float> k(clusters_ * dim), v(clusters_ * dim);
    rest.average(rest.rows().data(), req.head_dim, k);
    const std::vector<uint32_t> counts = rest.average(values.data(), req.head_dim, v);
    for (uint32_t j = 0; j < clusters_; ++j) {
      if (counts[j] > 0) push(&k[j * dim], &v[j * dim], counts[j], req.head_dim, rsp);
    }
  }

  static void keep(const mri_summary_make_req& req, size_t t, mri_summary_make_rsp& rsp) {
    push(req.k + t * req.head_dim, req.v + t * req.head_dim, 1, req.head_dim, rsp);
  }

  static void push(const float* k, const float* v, uint32_t count, size_t dim,
                   mri_summary_make_rsp& rsp) {
    std::copy_n(k, dim, rsp.k + rsp.n_pairs * dim);
    std::copy_n(v, dim, rsp.v + rsp.n_pairs * dim);
    rsp.log_count[rsp.n_pairs++] = std::log(static_cast<float>(count));
  }

  const mri_kernels_v1& kernels_;
  uint32_t heavy_, clusters_, iterations_;
};

constexpr mri_param_desc kParams[] = {
    mri::param_int("heavy_tokens_per_segment", 128, 0, 1024,
                   "tokens of each 1024 kept exactly; memory of the cold tier grows with it"),
    mri::param_int("clusters_per_segment", 32, 0, 1024,
                   "pairs that stand for all other tokens of a segment"),
    mri::param_int("iterations", 4, 1, 64, "k-means rounds; time to go cold grows with it"),
};

}  // namespace

MRI_PLUGIN(summary, "dev.varve.summary.clusters", "0.1.0", kParams, Clusters);
