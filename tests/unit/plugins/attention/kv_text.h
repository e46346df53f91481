// kv_text.h: a made-up text as one layer of KV memory, and exact attention over it.
#pragma once

#include <cstdint>
#include <vector>

#include "mri/kind/attention.h"

namespace varve::test {

inline constexpr uint32_t kDim = 16, kKvHeads = 2, kHeads = 4;

class KvText {
 public:
  // Random keys and values; `key_scale` sets how peaked attention is.
  KvText(uint32_t n_tokens, uint64_t seed, float key_scale = 1);

  // Unrotated key and value [kDim] of a token; change them before request().
  float* key(uint32_t kv_head, uint32_t token) {
    return &keys_[(kv_head * n_tokens_ + token) * kDim];
  }
  float* value(uint32_t kv_head, uint32_t token) {
    return &values_[(kv_head * n_tokens_ + token) * kDim];
  }
  float* query(uint32_t row, uint32_t head) { return &queries_[(row * kHeads + head) * kDim]; }

  // The last n_queries tokens ask. Encodes keys and values; call it once.
  const mri_attn_req& request(uint32_t n_queries, uint32_t flags);
  mri_attn_req& req() { return req_; }
  mri_attn_seq& seq() { return seq_; }
  mri_kv_block& block(uint32_t i) { return blocks_[i]; }
  // Gives each whole segment before `end_token` a summary of one page with one zero pair.
  void add_summaries(uint32_t end_token);

  float* o(uint32_t row, uint32_t head) { return &o_[(row * kHeads + head) * kDim]; }
  float& lse(uint32_t row, uint32_t head) { return lse_[row * kHeads + head]; }

  // Attention of a query over all tokens up to it, but those of blocks flagged as evicted, at true
  // positions. Returns lse.
  double exact(uint32_t row, uint32_t head, std::vector<double>& out) const;

 private:
  uint32_t n_tokens_;
  std::vector<float> keys_, values_, queries_, o_, lse_;
  std::vector<float> fine_cos_, fine_sin_, coarse_cos_, coarse_sin_;
  std::vector<uint8_t> index_, body_, summary_body_;
  std::vector<float> summary_bias_;
  std::vector<mri_kv_block> blocks_;
  std::vector<mri_kv_summary> summaries_;
  mri_rope rope_;
  mri_attn_seq seq_;
  mri_attn_req req_;
};

}  // namespace varve::test
