#include "mri/conformance/attention_batch.h"

namespace mri::conformance {
namespace {

constexpr uint32_t kBlock = MRI_BLOCK_TOKENS;
constexpr uint32_t kSegmentBlocks = MRI_SEGMENT_TOKENS / kBlock;
constexpr uint32_t kFine = 512;  // the longest tile and its offset

uint32_t total_queries(const std::vector<TextSpec>& specs) {
  uint32_t n = 0;
  for (const TextSpec& spec : specs) n += spec.n_queries;
  return n;
}

}  // namespace

// Softmax in double, one key at a time.
struct AttentionBatch::Sum {
  double max = -INFINITY, weight = 0;
  std::vector<double> o;

  void add(double logit, const float* v) {
    if (logit == -INFINITY) return;
    if (logit > max) {
      const double shrink = std::exp(max - logit);
      for (double& x : o) x *= shrink;
      weight *= shrink;
      max = logit;
    }
    const double w = std::exp(logit - max);
    for (size_t c = 0; c < o.size(); ++c) o[c] += w * v[c];
    weight += w;
  }
};

AttentionBatch::AttentionBatch(const mri_kernels_v1& kernels, Random& random, AttentionShape shape,
                               const std::vector<TextSpec>& specs)
    : shape_(shape),
      rows_(total_queries(specs)),
      texts_(specs.size()),
      seqs_(specs.size()),
      q_(random.normals(uint64_t{rows_} * shape.n_heads * shape.head_dim)),
      o_(uint64_t{rows_} * shape.n_heads * shape.head_dim),
      lse_(uint64_t{rows_} * shape.n_heads) {
  uint32_t most_blocks = 1, row = 0;
  for (const TextSpec& spec : specs) {
    most_blocks = std::max(most_blocks, (spec.n_tokens + kBlock - 1) / kBlock);
  }
  make_rope(most_blocks);
  for (uint32_t s = 0; s < specs.size(); ++s) {
    const TextSpec& spec = specs[s];
    fill(texts_[s], spec, random, kernels);
    if (spec.with_summaries) summarise(texts_[s], spec, random, kernels);
    mri_attn_seq& seq = seqs_[s];
    seq.blocks = texts_[s].blocks.data();
    seq.n_blocks = static_cast<uint32_t>(texts_[s].blocks.size());
    seq.summaries = texts_[s].summaries.data();
    seq.n_summaries = static_cast<uint32_t>(texts_[s].summaries.size());
    seq.first_row = row;
    seq.n_queries = spec.n_queries;
    seq.position = spec.n_tokens - spec.n_queries;
    seq.flags = spec.flags;
    row += spec.n_queries;
  }
  req_.seqs = seqs_.data();
  req_.n_seqs = static_cast<uint32_t>(seqs_.size());
  req_.rope = &rope_;
  req_.q = q_.data();
  req_.o = o_.data();
  req_.lse = lse_.data();
  req_.n_heads = shape.n_heads;
  req_.n_kv_heads = shape.n_kv_heads;
  req_.head_dim = shape.head_dim;
  req_.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  req_.trained_tokens = 1 << 20;
  clear();
}

void AttentionBatch::clear() {
  std::fill(o_.data(), o_.data() + o_.size(), NAN);
  std::fill(lse_.data(), lse_.data() + lse_.size(), NAN);
}

void AttentionBatch::make_rope(uint32_t n_blocks) {
  const uint32_t half = shape_.head_dim / 2, n_coarse = n_blocks + 64;
  for (uint32_t t = 0; t < n_coarse * kBlock + kFine; ++t) {
    for (uint32_t c = 0; c < half; ++c) {
      const double angle = t * std::pow(10000.0, -2.0 * c / shape_.head_dim);
      cos_.push_back(std::cos(angle));
      sin_.push_back(std::sin(angle));
    }
  }
  const auto every = [&](const std::vector<double>& from, uint32_t rows, uint32_t step) {
    std::vector<float> to;
    for (uint32_t i = 0; i < rows * half; ++i) {
      to.push_back(static_cast<float>(from[uint64_t{i / half} * step * half + i % half]));
    }
    return to;
  };
  fine_cos_ = every(cos_, kFine, 1);
  fine_sin_ = every(sin_, kFine, 1);
  coarse_cos_ = every(cos_, n_coarse, kBlock);
  coarse_sin_ = every(sin_, n_coarse, kBlock);
  rope_ = {fine_cos_.data(), fine_sin_.data(), coarse_cos_.data(), coarse_sin_.data(), kFine,
           n_coarse,         shape_.head_dim,  shape_.head_dim};
}

// x turned forward by `by` >= 0 tokens.
std::vector<double> AttentionBatch::turned(const float* x, int64_t by) const {
  const uint32_t half = shape_.head_dim / 2;
  const double *cos = &cos_[static_cast<uint64_t>(by) * half],
               *sin = &sin_[static_cast<uint64_t>(by) * half];
  std::vector<double> y(shape_.head_dim);
  for (uint32_t i = 0; i < half; ++i) {
    y[i] = x[i] * cos[i] - x[i + half] * sin[i];
    y[i + half] = x[i + half] * cos[i] + x[i] * sin[i];
  }
  return y;
}

void AttentionBatch::fill(Text& text, const TextSpec& spec, Random& random,
                          const mri_kernels_v1& kernels) {
  const uint32_t dim = shape_.head_dim, heads = shape_.n_kv_heads;
  const uint32_t n_blocks = (spec.n_tokens + kBlock - 1) / kBlock;
  const uint64_t index_bytes = kernels.index_bytes(kernels.self, dim);
  const uint64_t page = 2ull * kBlock * dim;  // floats
  text.k = random.normals(uint64_t{heads} * spec.n_tokens * dim);
  text.v = random.normals(uint64_t{heads} * spec.n_tokens * dim);
  text.index.resize(n_blocks * heads * index_bytes + 64);
  text.body.resize(n_blocks * heads * page);
  const uint32_t first_query = spec.n_tokens - spec.n_queries;
  for (uint32_t b = 0; b < n_blocks; ++b) {
    const uint32_t n = std::min(kBlock, spec.n_tokens - b * kBlock);
    mri_kv_block block{};
    block.id = b + 1;
    block.position = b * kBlock;
    block.n_tokens = static_cast<uint16_t>(n);
    for (uint32_t t = 0; t < n; ++t) {
      const bool asks = b * kBlock + t >= first_query;
      if (asks || !random.chance(spec.hole_percent)) block.live_mask |= 1u << t;
    }
    if (n < kBlock) block.flags |= MRI_BLOCK_PARTIAL;
    if (b == 0) block.flags |= MRI_BLOCK_SINK;
    block.format = MRI_KV_F32;
    block.segment = UINT32_MAX;
    block.index = &text.index[b * heads * index_bytes];
    block.index_head_stride = static_cast<uint32_t>(index_bytes);
    block.body_head_stride = static_cast<uint32_t>(page * sizeof(float));
    block.body = reinterpret_cast<const uint8_t*>(&text.body[b * heads * page]);
    for (uint32_t h = 0; h < heads; ++h) {
      std::vector<float> k(kBlock * dim);
      float* body = &text.body[(b * heads + h) * page];
      for (uint32_t t = 0; t < n; ++t) {
        const uint64_t at = (uint64_t{h} * spec.n_tokens + b * kBlock + t) * dim;
        const std::vector<double> key = turned(&text.k[at], t);
        for (uint32_t c = 0; c < dim; ++c) {
          k[t * dim + c] = static_cast<float>(key[c]);
          body[c * kBlock + t] = k[t * dim + c];
          body[kBlock * dim + t * dim + c] = text.v[at + c];
        }
      }
      kernels.make_index(kernels.self, k.data(), block.live_mask, dim,
                         &text.index[(b * heads + h) * index_bytes]);
    }
    const bool may_go = b > 0 && (b + 1) * kBlock <= first_query;
    if (may_go && random.chance(spec.gone_percent)) {
      block.flags |= MRI_BLOCK_EVICTED;
      block.live_mask = 0;
      block.body = nullptr;
    }
    text.blocks.push_back(block);
  }
}

void AttentionBatch::summarise(Text& text, const TextSpec& spec, Random& random,
                               const mri_kernels_v1& kernels) {
  const uint32_t dim = shape_.head_dim, heads = shape_.n_kv_heads;
  const uint32_t n = spec.n_tokens / MRI_SEGMENT_TOKENS;
  const uint64_t page = kernels.body_bytes(kernels.self, MRI_KV_BF16, dim);
  const uint64_t pairs = uint64_t{kBlock} * dim;
  text.summary_body.resize(n * heads * page + 64);
  text.summary_k.resize(n * heads * pairs);
  text.summary_v.resize(n * heads * pairs);
  text.bias.resize(uint64_t{n} * heads * kBlock);
  for (float& bias : text.bias)
    bias = random.chance(20) ? -INFINITY : 3 * static_cast<float>(random.unit());
  for (uint32_t s = 0; s < n; ++s) {
    for (uint32_t h = 0; h < heads; ++h) {
      const std::vector<float> k = random.normals(pairs), v = random.normals(pairs);
      uint8_t* body = &text.summary_body[(s * heads + h) * page];
      const uint64_t at = (s * heads + h) * pairs;
      kernels.encode(kernels.self, MRI_KV_BF16, k.data(), v.data(), dim, nullptr, body);
      kernels.decode(kernels.self, MRI_KV_BF16, nullptr, body, dim, &text.summary_k[at],
                     &text.summary_v[at]);
    }
    mri_kv_summary summary{};
    summary.position = s * MRI_SEGMENT_TOKENS;
    summary.n_tokens = MRI_SEGMENT_TOKENS;
    summary.n_pages = 1;
    summary.body = &text.summary_body[s * heads * page];
    summary.bias = &text.bias[uint64_t{s} * heads * kBlock];
    summary.head_stride = page;
    summary.page_stride = page;
    summary.layer_stride = heads * page;
    text.summaries.push_back(summary);
    for (uint32_t b = s * kSegmentBlocks; b < (s + 1) * kSegmentBlocks; ++b)
      text.blocks[b].segment = s;
  }
}

void AttentionBatch::add_block(const Text& text, uint32_t kv_head, uint32_t block, int64_t distance,
                               int64_t offset, double log_weight, const float* q, Sum* sum) const {
  const uint32_t dim = shape_.head_dim;
  const mri_kv_block& b = text.blocks[block];
  const uint64_t n_tokens = text.k.size() / dim / shape_.n_kv_heads;
  for (uint32_t t = 0; t < b.n_tokens; ++t) {
    const int64_t behind = distance * kBlock + offset - t;  // how far the key lies before the query
    if ((b.live_mask >> t & 1u) == 0 || behind < 0) continue;
    const uint64_t at = (kv_head * n_tokens + b.position + t) * dim;
    const std::vector<double> turned_q = turned(q, behind);
    double dot = 0;
    for (uint32_t c = 0; c < dim; ++c) dot += turned_q[c] * text.k[at + c];
    sum->add(req_.scale * dot + log_weight, &text.v[at]);
  }
}

void AttentionBatch::add_summary(const Text& text, uint32_t kv_head, uint32_t segment,
                                 int64_t distance, int64_t offset, double log_weight,
                                 const float* q, Sum* sum) const {
  const uint32_t dim = shape_.head_dim;
  const std::vector<double> turned_q = turned(q, distance * kBlock + offset);
  for (uint32_t t = 0; t < kBlock; ++t) {
    const uint64_t pair = (segment * shape_.n_kv_heads + kv_head) * kBlock + t;
    double dot = 0;
    for (uint32_t c = 0; c < dim; ++c) dot += turned_q[c] * text.summary_k[pair * dim + c];
    sum->add(req_.scale * dot + text.bias[pair] + log_weight, &text.summary_v[pair * dim]);
  }
}

double AttentionBatch::exact(const Plan& plan, uint32_t s, uint32_t query, uint32_t head,
                             std::vector<double>* o) const {
  const mri_attn_seq& seq = seqs_[s];
  const uint32_t kv_head = head / (shape_.n_heads / shape_.n_kv_heads);
  const float* q = &q_[(uint64_t{seq.first_row + query} * shape_.n_heads + head) * shape_.head_dim];
  Sum sum;
  sum.o.assign(shape_.head_dim, 0);
  for (const mri_attn_item& item : plan.items) {
    if (item.seq != s || item.kv_head != kv_head || query < item.first_query ||
        query - item.first_query >= item.n_queries)
      continue;
    const int64_t offset = (seq.position + item.first_query) % kBlock + (query - item.first_query);
    for (uint32_t e = item.first_entry; e < item.first_entry + item.n_entries; ++e) {
      const mri_attn_entry& entry = plan.entries[e];
      for (uint32_t i = 0; i < entry.count; ++i) {
        if (entry.what == MRI_ATTN_BLOCKS) {
          add_block(texts_[s], kv_head, entry.index + i, int64_t{entry.distance} - i, offset,
                    entry.log_weight, q, &sum);
        } else {
          add_summary(texts_[s], kv_head, entry.index + i,
                      int64_t{entry.distance} - int64_t{i} * kSegmentBlocks, offset,
                      entry.log_weight, q, &sum);
        }
      }
    }
  }
  for (double& x : sum.o) x = sum.weight > 0 ? x / sum.weight : 0;
  *o = sum.o;
  return sum.weight > 0 ? sum.max + std::log(sum.weight) : -INFINITY;
}

AttentionBatch::Errors AttentionBatch::errors(const Plan& plan) const {
  Errors errors;
  std::vector<double> o;
  const auto worst = [](double* error, double wanted, double got) {
    if (wanted == got) return;  // both -inf
    const double difference = std::fabs(wanted - got);
    *error = std::isfinite(difference) ? std::max(*error, difference) : INFINITY;
  };
  for (uint32_t s = 0; s < seqs_.size(); ++s) {
    for (uint32_t query = 0; query < seqs_[s].n_queries; ++query) {
      for (uint32_t head = 0; head < shape_.n_heads; ++head) {
        const double lse = exact(plan, s, query, head, &o);
        const uint64_t at = uint64_t{seqs_[s].first_row + query} * shape_.n_heads + head;
        worst(&errors.lse, lse, lse_[at]);
        for (uint32_t c = 0; c < shape_.head_dim; ++c) {
          worst(&errors.o, o[c], o_[at * shape_.head_dim + c]);
        }
      }
    }
  }
  return errors;
}

}  // namespace mri::conformance
