// page.h: one KV head of one block in one layer as bytes. The byte layouts are those of
// mri/kv_view.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace varve::kernels {

inline constexpr size_t kBlockTokens = 32;

enum class KvFormat : uint32_t { kF32 = 1, kBf16 = 2, kInt8 = 3 };

// Bytes of an index, padded to 64: k_min, k_step, k_radius f16 [head_dim], k_top u64 [head_dim].
constexpr size_t index_bytes(size_t head_dim) { return (head_dim * 14 + 63) / 64 * 64; }

// Bytes of a body; every fused format.
constexpr size_t body_bytes(KvFormat format, size_t head_dim) {
  switch (format) {
    case KvFormat::kF32:
      return kBlockTokens * head_dim * 8;
    case KvFormat::kBf16:
      return kBlockTokens * head_dim * 4;
    case KvFormat::kInt8:  // mid and low planes, value codes, value steps
      return head_dim * 24 + kBlockTokens * head_dim + kBlockTokens * ((head_dim + 31) / 32) * 2;
  }
  return 0;
}

// make_index: k [32][head_dim]; tokens outside live_mask are ignored; an all-dead page gives zeros.
// encode: k, v [32][head_dim]; kInt8 reads the index that make_index wrote for the same k. head_dim
// is a multiple of 8. decode: k or v may be null. All re-entrant; index and body need no alignment
// beyond 8 bytes.
namespace ref {
void make_index(const float* k, uint32_t live_mask, size_t head_dim, uint8_t* index);
void encode(KvFormat format, const float* k, const float* v, size_t head_dim, const uint8_t* index,
            uint8_t* body);
void decode(KvFormat format, const uint8_t* index, const uint8_t* body, size_t head_dim, float* k,
            float* v);
}  // namespace ref

namespace cpu {
void make_index(const float* k, uint32_t live_mask, size_t head_dim, uint8_t* index);
void encode(KvFormat format, const float* k, const float* v, size_t head_dim, const uint8_t* index,
            uint8_t* body);
void decode(KvFormat format, const uint8_t* index, const uint8_t* body, size_t head_dim, float* k,
            float* v);
}  // namespace cpu

}  // namespace varve::kernels
