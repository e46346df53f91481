#include "tests/unit/plugins/attention/kv_text.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/support/fake_host.h"

namespace varve::test {
namespace {

double angle(uint32_t pair) { return std::pow(10000.0, -2.0 * pair / kDim); }

template <class T>
void rotate(const float* x, double position, T* out) {
  for (uint32_t i = 0; i < kDim / 2; ++i) {
    const double c = std::cos(position * angle(i)), s = std::sin(position * angle(i));
    out[i] = static_cast<T>(x[i] * c - x[i + kDim / 2] * s);
    out[i + kDim / 2] = static_cast<T>(x[i] * s + x[i + kDim / 2] * c);
  }
}

void fill_table(uint32_t n, double step, std::vector<float>& cosines, std::vector<float>& sines) {
  for (uint32_t p = 0; p < n; ++p) {
    for (uint32_t i = 0; i < kDim / 2; ++i) {
      cosines.push_back(static_cast<float>(std::cos(p * step * angle(i))));
      sines.push_back(static_cast<float>(std::sin(p * step * angle(i))));
    }
  }
}

}  // namespace

KvText::KvText(uint32_t n_tokens, uint64_t seed, float key_scale) : n_tokens_(n_tokens) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  keys_.resize(size_t{kKvHeads} * n_tokens * kDim);
  values_.resize(keys_.size());
  for (float& x : keys_) x = key_scale * normal(random);
  for (float& x : values_) x = normal(random);
  queries_.resize(size_t{n_tokens} * kHeads * kDim);
  for (float& x : queries_) x = normal(random);
  fill_table(512, 1, fine_cos_, fine_sin_);
  fill_table(n_tokens / MRI_BLOCK_TOKENS + 512, MRI_BLOCK_TOKENS, coarse_cos_, coarse_sin_);
}

const mri_attn_req& KvText::request(uint32_t n_queries, uint32_t flags) {
  const mri_kernels_v1& kernels = ref_kernels();
  const uint32_t n_blocks = (n_tokens_ + MRI_BLOCK_TOKENS - 1) / MRI_BLOCK_TOKENS;
  const size_t index_bytes = kernels.index_bytes(nullptr, kDim);
  const size_t body_bytes = kernels.body_bytes(nullptr, MRI_KV_F32, kDim);
  index_.resize(n_blocks * kKvHeads * index_bytes);
  body_.resize(n_blocks * kKvHeads * body_bytes);
  for (uint32_t b = 0; b < n_blocks; ++b) {
    const uint32_t first = b * MRI_BLOCK_TOKENS, n = std::min(MRI_BLOCK_TOKENS, n_tokens_ - first);
    const uint32_t mask = n == 32 ? UINT32_MAX : (1u << n) - 1;
    for (uint32_t h = 0; h < kKvHeads; ++h) {
      std::vector<float> k(MRI_BLOCK_TOKENS * kDim), v(k.size());
      for (uint32_t t = 0; t < n; ++t) {
        rotate(key(h, first + t), t, &k[t * kDim]);
        std::copy_n(value(h, first + t), kDim, &v[t * kDim]);
      }
      uint8_t* index = &index_[(b * kKvHeads + h) * index_bytes];
      kernels.make_index(nullptr, k.data(), mask, kDim, index);
      kernels.encode(nullptr, MRI_KV_F32, k.data(), v.data(), kDim, index,
                     &body_[(b * kKvHeads + h) * body_bytes]);
    }
    mri_kv_block block{};
    block.id = b + 1;
    block.position = first;
    block.live_mask = mask;
    block.n_tokens = static_cast<uint16_t>(n);
    block.index = &index_[b * kKvHeads * index_bytes];
    block.body = &body_[b * kKvHeads * body_bytes];
    block.index_head_stride = static_cast<uint32_t>(index_bytes);
    block.body_head_stride = static_cast<uint32_t>(body_bytes);
    block.format = MRI_KV_F32;
    blocks_.push_back(block);
  }
  o_.assign(size_t{n_queries} * kHeads * kDim, NAN);
  lse_.assign(size_t{n_queries} * kHeads, NAN);
  rope_ = {fine_cos_.data(),
           fine_sin_.data(),
           coarse_cos_.data(),
           coarse_sin_.data(),
           512,
           static_cast<uint32_t>(coarse_cos_.size() / (kDim / 2)),
           kDim,
           kDim};
  seq_ = {};
  seq_.blocks = blocks_.data();
  seq_.n_blocks = n_blocks;
  seq_.n_queries = n_queries;
  seq_.position = n_tokens_ - n_queries;
  seq_.flags = flags;
  req_ = sized<mri_attn_req>();
  req_.seqs = &seq_;
  req_.rope = &rope_;
  req_.q = queries_.data();
  req_.o = o_.data();
  req_.lse = lse_.data();
  req_.n_seqs = 1;
  req_.n_heads = kHeads;
  req_.n_kv_heads = kKvHeads;
  req_.head_dim = kDim;
  req_.scale = 0.25f;
  req_.trained_tokens = 1 << 20;
  return req_;
}

void KvText::add_summaries(uint32_t end_token) {
  const size_t page = ref_kernels().body_bytes(nullptr, MRI_KV_BF16, kDim);
  summary_body_.assign(kKvHeads * page, 0);
  summary_bias_.assign(kKvHeads * MRI_BLOCK_TOKENS, -INFINITY);
  for (uint32_t h = 0; h < kKvHeads; ++h) summary_bias_[h * MRI_BLOCK_TOKENS] = std::log(1024.f);
  for (uint32_t t = 0; t + MRI_SEGMENT_TOKENS <= end_token; t += MRI_SEGMENT_TOKENS) {
    summaries_.push_back({t, MRI_SEGMENT_TOKENS, 1, 0, summary_body_.data(), summary_bias_.data(),
                          0, page, page, 0});
  }
  seq_.summaries = summaries_.data();
  seq_.n_summaries = static_cast<uint32_t>(summaries_.size());
}

double KvText::exact(uint32_t row, uint32_t head, std::vector<double>& out) const {
  const uint32_t position = seq_.position + row, h = head / (kHeads / kKvHeads);
  std::vector<double> q(kDim), k(kDim), logits(position + 1, -INFINITY);
  rotate(&queries_[(row * kHeads + head) * kDim], position, q.data());
  double largest = -INFINITY, sum = 0;
  for (uint32_t t = 0; t <= position; ++t) {
    if ((blocks_[t / MRI_BLOCK_TOKENS].flags & MRI_BLOCK_EVICTED) != 0) continue;
    rotate(&keys_[(h * n_tokens_ + t) * kDim], t, k.data());
    double dot = 0;
    for (uint32_t c = 0; c < kDim; ++c) dot += q[c] * k[c];
    logits[t] = static_cast<double>(req_.scale) * dot;
    largest = std::max(largest, logits[t]);
  }
  out.assign(kDim, 0);
  for (uint32_t t = 0; t <= position; ++t) {
    const double p = std::exp(logits[t] - largest);
    sum += p;
    for (uint32_t c = 0; c < kDim; ++c)
      out[c] += p * static_cast<double>(values_[(h * n_tokens_ + t) * kDim + c]);
  }
  for (double& x : out) x /= sum;
  return largest + std::log(sum);
}

}  // namespace varve::test
