#include "adapters/light/kv/store.h"

#include <cmath>
#include <numbers>
#include <string>

#include "mri/sdk/error.hpp"

namespace varve::light {

void check_plugin_call(mri_status status, const mri_error& err, const char* who) {
  if (status == MRI_OK) return;
  // "Too small a buffer" is between this engine and the plugin: our caller cannot help it.
  throw mri::Error(
      status == MRI_E_SPACE ? MRI_E_INTERNAL : status,
      std::string(who) + ": " + (err.msg_len > 0 ? err.msg : "failed without a reason"));
}

namespace {

// A fused body has the size that kernels read; another one must be sane.
void check_description(const mri_quant_desc& desc, uint32_t head_dim) {
  const bool fused =
      desc.format == MRI_KV_F32 || desc.format == MRI_KV_BF16 || desc.format == MRI_KV_INT8;
  const uint64_t plain = kernels::body_bytes(kernels::KvFormat::kF32, head_dim);
  const uint64_t exact =
      fused ? kernels::body_bytes(static_cast<kernels::KvFormat>(desc.format), head_dim) : 0;
  const bool right =
      fused ? desc.body_bytes == exact
            : desc.format >= MRI_KV_CUSTOM && desc.body_bytes > 0 && desc.body_bytes <= 2 * plain;
  if (right) return;
  throw mri::Error(
      MRI_E_INTERNAL,
      "quantizer: found format " + std::to_string(desc.format) + " with pages of " +
          std::to_string(desc.body_bytes) + " bytes; expected " +
          (fused ? std::to_string(exact)
                 : "a format of mri/kv_view.h, or one from " + std::to_string(MRI_KV_CUSTOM) +
                       " with 1.." + std::to_string(2 * plain)) +
          " for heads of " + std::to_string(head_dim) + "; choose another quantizer.plugin");
}

}  // namespace

KvStore::KvStore(const KvStoreOptions& options, const mri::Host& host, const mri_rope* rope)
    : tier(host.peer<mri_kv_tier_v1>(MRI_KV_TIER)),
      quantizer(host.peer<mri_quantizer_v1>(MRI_QUANTIZER)),
      summary(host.peer<mri_summary_v1>(MRI_SUMMARY)),
      options_(options),
      host_(host),
      rope_(rope),
      index_page_bytes_(kernels::index_bytes(options.head_dim)),
      hot_page_bytes_(kernels::body_bytes(options.hot_format, options.head_dim)) {
  if (quantizer) {
    mri_quant_desc desc{};
    desc.hdr.struct_size = sizeof(desc);
    mri_error err{};
    err.struct_size = sizeof(err);
    check_plugin_call(quantizer.table->describe(quantizer.self, options.head_dim, &desc, &err), err,
                      "quantizer");
    check_description(desc, options.head_dim);
    warm_format_ = desc.format;
    warm_page_bytes_ = (desc.body_bytes + 63) / 64 * 64;
  }
  pool_ = std::make_unique<Pool>(options.budget_bytes, options.spare_bytes_max);
  backing_ = std::make_unique<Backing>(options.backing, options.backing_directory,
                                       warm_block_bytes(), options.backing_limit_bytes);
  prefixes_ = std::make_unique<PrefixCache>(*pool_, options.prefix_limit_bytes);
}

Backing::Slot KvStore::put_cold(const uint8_t* body) const {
  for (;;) {
    try {
      return backing_->put(body);
    } catch (const mri::Error& e) {
      if (e.status() != MRI_E_NOMEM || !prefixes_->drop_oldest()) throw;
    }
  }
}

// By the quantizer, and readable now.
bool KvStore::is_encoded(const mri_kv_block* block) const {
  return block != nullptr && block->tier != MRI_TIER_HOT && block->body != nullptr &&
         block->format == warm_format_;
}

double KvStore::mass_weight(uint32_t n) const {
  const double step = std::numbers::ln2 / options_.mass_tokens;
  return std::expm1(-step * n) / std::expm1(-step);
}

void KvStore::decode(const mri_kv_block& block, const mri_kv_block* previous, uint32_t layer,
                     uint32_t kv_head, float* k, float* v) const {
  const uint8_t* index = page_index(block, layer, kv_head);
  const uint8_t* body = page_body(block, layer, kv_head);
  if (block.format < MRI_KV_CUSTOM) {
    kernels::cpu::decode(static_cast<kernels::KvFormat>(block.format), index, body,
                         options_.head_dim, k, v);
    return;
  }
  mri_quant_decode_req req{};
  req.hdr.struct_size = sizeof(req);
  req.index = index;
  req.body = body;
  if (is_encoded(previous)) {
    req.previous_index = page_index(*previous, layer, kv_head);
    req.previous_body = page_body(*previous, layer, kv_head);
  }
  req.k = k;
  req.v = v;
  req.head_dim = options_.head_dim;
  req.live_mask = block.live_mask;
  req.layer = layer;
  req.kv_head = kv_head;
  mri_error err{};
  err.struct_size = sizeof(err);
  check_plugin_call(quantizer.table->decode(quantizer.self, &req, &err), err, "quantizer");
}

void KvStore::encode_warm(const float* k, const float* v, const mri_kv_block& block,
                          const mri_kv_block* previous, uint32_t layer, uint32_t kv_head,
                          uint8_t* body) const {
  mri_quant_encode_req req{};
  req.hdr.struct_size = sizeof(req);
  req.k = k;
  req.v = v;
  req.index = page_index(block, layer, kv_head);
  req.body = body;
  if (is_encoded(previous)) {
    req.previous_index = page_index(*previous, layer, kv_head);
    req.previous_body = page_body(*previous, layer, kv_head);
  }
  req.head_dim = options_.head_dim;
  req.live_mask = block.live_mask;
  req.layer = layer;
  req.kv_head = kv_head;
  mri_error err{};
  err.struct_size = sizeof(err);
  check_plugin_call(quantizer.table->encode(quantizer.self, &req, &err), err, "quantizer");
}

}  // namespace varve::light
