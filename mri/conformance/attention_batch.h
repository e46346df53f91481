// Made-up texts in KV memory, and exact attention over them in double precision.
#pragma once

#include <cstdint>
#include <vector>

#include "mri/conformance/calling.h"
#include "mri/conformance/random.h"
#include "mri/kind/attention.h"

namespace mri::conformance {

struct AttentionShape {
  uint32_t n_heads, n_kv_heads, head_dim;
};

struct TextSpec {
  uint32_t n_tokens;  // the last n_queries of these ask
  uint32_t n_queries;
  uint32_t flags = 0;           // MRI_ATTN_SEQ_*
  uint32_t hole_percent = 0;    // tokens evicted one by one; never those that ask
  uint32_t gone_percent = 0;    // blocks evicted whole: no body
  bool with_summaries = false;  // one page for each whole segment
};

// A plan of the caller's own.
struct Plan {
  std::vector<mri_attn_item> items;
  std::vector<mri_attn_entry> entries;
};

// One layer of a batch of texts, pages in MRI_KV_F32. Nothing of it moves.
class AttentionBatch {
 public:
  AttentionBatch(const mri_kernels_v1& kernels, Random& random, AttentionShape shape,
                 const std::vector<TextSpec>& specs);
  AttentionBatch(const AttentionBatch&) = delete;
  AttentionBatch& operator=(const AttentionBatch&) = delete;

  const mri_attn_req& req() const { return req_; }
  const mri_attn_seq& seq(uint32_t s) const { return seqs_[s]; }
  bool is_gone(uint32_t s, uint32_t block) const {
    return (seqs_[s].blocks[block].flags & MRI_BLOCK_EVICTED) != 0;
  }
  uint32_t rows() const { return rows_; }
  std::vector<float> o() const { return o_.copy(); }
  std::vector<float> lse() const { return lse_.copy(); }
  bool is_intact() const { return o_.is_intact() && lse_.is_intact(); }
  // Makes o and lse NaN, so that what run() leaves out shows.
  void clear();

  // What `plan` says for a row and head: o [head_dim], returns lse.
  double exact(const Plan& plan, uint32_t s, uint32_t query, uint32_t head,
               std::vector<double>* o) const;
  // Largest differences of o and lse from exact() over all rows and heads; infinite when one is not
  // finite where it should be.
  struct Errors {
    double o = 0, lse = 0;
  };
  Errors errors(const Plan& plan) const;

 private:
  struct Text {
    std::vector<float> k, v;  // [kv_head][token][head_dim], not rotated
    std::vector<uint8_t> index;
    std::vector<float> body;
    std::vector<uint8_t> summary_body;
    std::vector<float> summary_k, summary_v, bias;  // as decoded: [segment][kv_head][32][head_dim]
    std::vector<mri_kv_block> blocks;
    std::vector<mri_kv_summary> summaries;
  };
  struct Sum;

  void make_rope(uint32_t n_blocks);
  void fill(Text& text, const TextSpec& spec, Random& random, const mri_kernels_v1& kernels);
  void summarise(Text& text, const TextSpec& spec, Random& random, const mri_kernels_v1& kernels);
  std::vector<double> turned(const float* x, int64_t by) const;
  void add_block(const Text& text, uint32_t kv_head, uint32_t block, int64_t distance,
                 int64_t offset, double log_weight, const float* q, Sum* sum) const;
  void add_summary(const Text& text, uint32_t kv_head, uint32_t segment, int64_t distance,
                   int64_t offset, double log_weight, const float* q, Sum* sum) const;

  const AttentionShape shape_;
  uint32_t rows_ = 0;
  std::vector<Text> texts_;
  std::vector<mri_attn_seq> seqs_;
  std::vector<float> q_;
  Guarded<float> o_, lse_;
  std::vector<double> cos_, sin_;  // [tokens][head_dim / 2]
  std::vector<float> fine_cos_, fine_sin_, coarse_cos_, coarse_sin_;
  mri_rope rope_{};
  mri_attn_req req_ = sized<mri_attn_req>();
};

}  // namespace mri::conformance
