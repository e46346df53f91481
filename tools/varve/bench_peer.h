// llama.cpp at its best on this machine and for this length.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "tools/varve/bench_engine.h"

namespace varve::cli {

struct PeerSettings {
  std::string kv_type;  // f16, q8_0
  uint32_t ubatch_tokens = 0;
  friend bool operator==(const PeerSettings&, const PeerSettings&) = default;
};

Settings peer_settings(const PeerSettings& settings, uint64_t max_tokens);
Json peer_json(const PeerSettings& settings);

// Flash attention is always on. The format of keys and values that reads a prompt fastest is not
// always the one that decodes fastest: each measure gets its best.
struct PeerChoice {
  PeerSettings prefill, decode;
};

// Tries the formats `kv_types` and ubatches of 512 and 2048 tokens on the start of the text, decode
// at two lengths, drawn out to `n_prompt`. `setup` is the peer's, with tokens. Tells what it does
// on standard error.
absl::StatusOr<PeerChoice> choose_peer(const std::vector<std::string>& profile_arguments,
                                       const EngineSetup& setup, uint64_t n_prompt,
                                       const std::vector<std::string>& kv_types);

}  // namespace varve::cli
