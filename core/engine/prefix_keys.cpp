#include "core/engine/prefix_keys.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "core/base/sha256.h"
#include "mri/kv_view.h"

namespace varve {
namespace {

static_assert(kPrefixBlockTokens == MRI_BLOCK_TOKENS);

mri_prefix_key key_of(std::string_view bytes) {
  return std::bit_cast<mri_prefix_key>(sha256(bytes));
}

void append_number(std::string* bytes, uint64_t value, int n_bytes) {
  for (int i = 0; i < n_bytes; ++i) bytes->push_back(static_cast<char>(value >> (8 * i)));
}

bool is_equal(const mri_prefix_key& a, const mri_prefix_key& b) {
  return std::memcmp(a.bytes, b.bytes, sizeof(a.bytes)) == 0;
}

}  // namespace

PrefixKeys::PrefixKeys(std::string_view digest, std::string_view tenant) {
  std::string bytes;
  for (const std::string_view field : {digest, tenant}) {
    append_number(&bytes, field.size(), 8);
    bytes.append(field);
  }
  last_ = key_of(bytes);
}

std::span<const mri_prefix_key> PrefixKeys::extend(std::span<const int32_t> tokens) {
  std::string bytes;
  while ((keys_.size() + 1) * kPrefixBlockTokens <= tokens.size()) {
    bytes.assign(reinterpret_cast<const char*>(last_.bytes), sizeof(last_.bytes));
    for (const int32_t token :
         tokens.subspan(keys_.size() * kPrefixBlockTokens, kPrefixBlockTokens)) {
      append_number(&bytes, static_cast<uint32_t>(token), 4);
    }
    last_ = key_of(bytes);
    keys_.push_back(last_);
  }
  return keys_;
}

size_t n_common(std::span<const mri_prefix_key> a, std::span<const mri_prefix_key> b) {
  // Equal keys mean equal keys before them.
  size_t low = 0, high = std::min(a.size(), b.size());
  while (low < high) {
    const size_t middle = (low + high + 1) / 2;
    if (is_equal(a[middle - 1], b[middle - 1])) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace varve
