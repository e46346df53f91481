// store.h: what all contexts of an engine share: memory, the shapes and formats of pages, and the
// plugins that decide and encode.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "adapters/light/kv/backing.h"
#include "adapters/light/kv/pool.h"
#include "adapters/light/kv/prefix.h"
#include "kernels/page.h"
#include "mri/kind/kv_tier.h"
#include "mri/kind/quantizer.h"
#include "mri/kind/summary.h"
#include "mri/kv_view.h"
#include "mri/sdk/host.hpp"

namespace varve::light {

struct KvStoreOptions {
  uint32_t n_layers = 0, n_kv_heads = 0, head_dim = 0;
  kernels::KvFormat hot_format = kernels::KvFormat::kBf16;
  uint64_t budget_bytes = 0;  // 0: no limit
  uint64_t spare_bytes_max = 64u << 20;
  BackingKind backing = BackingKind::kRam;
  std::string backing_directory;
  uint64_t backing_limit_bytes = 0;  // 0: no limit
  uint64_t prefix_limit_bytes = 0;   // of kept prefixes; 0: no limit but the budget
  // Tokens after which attention received counts half; 0: not measured.
  uint32_t mass_tokens = 0;
};

// Immutable after the constructor, except for the pool, the backing and the kept prefixes, which
// lock themselves.
class KvStore {
 public:
  // Finds the stack's kv_tier, quantizer and summary through the host. Without a kv_tier everything
  // stays hot; without a quantizer nothing leaves hot; without a summary segments have none. Throws
  // mri::Error.
  KvStore(const KvStoreOptions& options, const mri::Host& host, const mri_rope* rope);

  const KvStoreOptions& options() const { return options_; }
  const mri::Host& host() const { return host_; }
  const mri_rope& rope() const { return *rope_; }
  Pool& pool() const { return *pool_; }
  Backing& backing() const { return *backing_; }
  PrefixCache& prefixes() const { return *prefixes_; }

  uint32_t pages() const { return options_.n_layers * options_.n_kv_heads; }
  size_t index_page_bytes() const { return index_page_bytes_; }
  size_t hot_page_bytes() const { return hot_page_bytes_; }
  size_t warm_page_bytes() const { return warm_page_bytes_; }
  size_t index_block_bytes() const { return index_page_bytes_ * pages(); }
  size_t hot_block_bytes() const { return hot_page_bytes_ * pages(); }
  size_t warm_block_bytes() const { return warm_page_bytes_ * pages(); }
  uint32_t warm_format() const { return warm_format_; }
  // What n queries in a row count together when the newest counts 1 and one that is mass_tokens
  // older half.
  double mass_weight(uint32_t n) const;
  bool has_quantizer() const { return static_cast<bool>(quantizer); }

  // One page to f32 [32][head_dim]; any format. k or v may be null. `previous` is the block before,
  // or null; a quantizer may look at it. Throws mri::Error.
  void decode(const mri_kv_block& block, const mri_kv_block* previous, uint32_t layer,
              uint32_t kv_head, float* k, float* v) const;
  // Encodes one page of `block` from f32 into the warm format. Throws mri::Error.
  void encode_warm(const float* k, const float* v, const mri_kv_block& block,
                   const mri_kv_block* previous, uint32_t layer, uint32_t kv_head,
                   uint8_t* body) const;

  // Into the backing. Kept prefixes make room; then throws as Backing::put().
  Backing::Slot put_cold(const uint8_t* body) const;

  mri::Peer<mri_kv_tier_v1> tier;
  mri::Peer<mri_quantizer_v1> quantizer;
  mri::Peer<mri_summary_v1> summary;

 private:
  bool is_encoded(const mri_kv_block* block) const;

  KvStoreOptions options_;
  mri::Host host_;
  const mri_rope* rope_;
  size_t index_page_bytes_, hot_page_bytes_;
  size_t warm_page_bytes_ = 0;
  uint32_t warm_format_ = 0;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Backing> backing_;
  std::unique_ptr<PrefixCache> prefixes_;
};

// The page (layer, kv_head) of a block.
inline const uint8_t* page_index(const mri_kv_block& block, uint32_t layer, uint32_t kv_head) {
  return block.index + static_cast<size_t>(layer) * block.index_layer_stride +
         static_cast<size_t>(kv_head) * block.index_head_stride;
}
inline const uint8_t* page_body(const mri_kv_block& block, uint32_t layer, uint32_t kv_head) {
  return block.body + static_cast<size_t>(layer) * block.body_layer_stride +
         static_cast<size_t>(kv_head) * block.body_head_stride;
}

// Throws mri::Error with the callee's text when status is not MRI_OK. `who` names the plugin kind.
void check_plugin_call(mri_status status, const mri_error& err, const char* who);

}  // namespace varve::light
