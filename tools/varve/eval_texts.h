// Real texts to measure with: those given, or what every machine has after tools/setup.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/engine/text.h"

namespace varve::cli {

// `n_texts` windows of `n_tokens` tokens each, spread evenly over `paths` joined in their order.
// Without paths: the document of tools/setup (VARVE_DOCUMENT, or in the cache), then
// /usr/share/common-licenses, then, for long windows, the manual of CMake. Windows overlap where
// there is less text than they need together; less than one window is an error. Texts never hold
// special tokens.
absl::StatusOr<std::vector<std::vector<int32_t>>> text_windows(
    const Text& text, const std::vector<std::string>& paths, uint64_t n_tokens, uint64_t n_texts);

// VARVE_CACHE, or else varve in XDG_CACHE_HOME or ~/.cache; "" when none is set.
std::string cache_directory();

}  // namespace varve::cli
