// Names of prefixes for sharing KV memory: mri/ext/memory.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "mri/ext/memory.h"

namespace varve {

inline constexpr uint32_t kPrefixBlockTokens = 32;  // MRI_BLOCK_TOKENS

// A chain of SHA-256: the first link over the length and bytes of `digest` (model and stack) and of
// `tenant`, each next one over the link before and a block of 32 tokens (little-endian). So keys
// are equal only for the same tenant of the same stack and the same tokens from the start, and
// nobody can make a key of another tenant's text.
class PrefixKeys {
 public:
  PrefixKeys(std::string_view digest, std::string_view tenant);

  // Keys of all full blocks of `tokens`, which begin with the tokens given before.
  std::span<const mri_prefix_key> extend(std::span<const int32_t> tokens);
  std::span<const mri_prefix_key> keys() const { return keys_; }

 private:
  mri_prefix_key last_;
  std::vector<mri_prefix_key> keys_;
};

// Blocks that two chains have in common.
size_t n_common(std::span<const mri_prefix_key> a, std::span<const mri_prefix_key> b);

}  // namespace varve
