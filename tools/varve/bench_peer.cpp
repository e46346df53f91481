#include "tools/varve/bench_peer.h"

#include <algorithm>
#include <iostream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace varve::cli {
namespace {

constexpr uint64_t kTrialTokens = 2048;  // longer texts are tried on their start
constexpr uint64_t kTrialDecodes = 12;
constexpr uint32_t kUbatches[] = {512, 2048};

struct Trial {
  double prefill_s = 0;
  double decode_ms = 0;  // expected at the full length
};

absl::StatusOr<Trial> try_out(const std::vector<std::string>& profile_arguments, EngineSetup setup,
                              const PeerSettings& settings, uint64_t n_prompt) {
  const uint64_t n = std::min(n_prompt, kTrialTokens);
  setup.tokens.resize(n + kTrialDecodes);
  for (const std::string& assignment : peer_settings(settings, setup.tokens.size()))
    setup.settings.push_back(assignment);
  absl::StatusOr<std::unique_ptr<BenchEngine>> engine =
      BenchEngine::start(profile_arguments, setup);
  if (!engine.ok()) return engine.status();
  const uint64_t n_short = std::max<uint64_t>(1, n / 4);
  const absl::StatusOr<EngineTimes> early = (*engine)->run(n_short, kTrialDecodes);
  if (!early.ok()) return early.status();
  const absl::StatusOr<EngineTimes> late = (*engine)->run(n, kTrialDecodes);
  if (!late.ok()) return late.status();
  // The least of a few is the least disturbed by others.
  const auto least = [](const EngineTimes& times) {
    return *std::min_element(times.decode_ms.begin(), times.decode_ms.end());
  };
  Trial trial{late->prefill_s, least(*late)};
  const double per_token = std::max(0.0, least(*late) - least(*early)) /
                           static_cast<double>(std::max<uint64_t>(1, n - n_short));
  trial.decode_ms += per_token * static_cast<double>(n_prompt - n);
  return trial;
}

}  // namespace

Settings peer_settings(const PeerSettings& settings, uint64_t max_tokens) {
  return {absl::StrCat("runtime.kv_type=", settings.kv_type),
          absl::StrCat("runtime.ubatch_tokens=", settings.ubatch_tokens),
          "runtime.flash_attention=true", absl::StrCat("runtime.max_tokens=", max_tokens)};
}

Json peer_json(const PeerSettings& settings) {
  return {{"kv_type", settings.kv_type},
          {"ubatch_tokens", settings.ubatch_tokens},
          {"flash_attention", true}};
}

absl::StatusOr<PeerChoice> choose_peer(const std::vector<std::string>& profile_arguments,
                                       const EngineSetup& setup, uint64_t n_prompt,
                                       const std::vector<std::string>& kv_types) {
  PeerChoice best;
  double prefill_s = std::numeric_limits<double>::infinity(), decode_ms = prefill_s;
  for (const std::string& kv_type : kv_types) {
    for (const uint32_t ubatch : kUbatches) {
      if (ubatch > kUbatches[0] && n_prompt <= kUbatches[0]) continue;  // one step in any case
      const PeerSettings settings{kv_type, ubatch};
      const absl::StatusOr<Trial> trial = try_out(profile_arguments, setup, settings, n_prompt);
      if (!trial.ok()) return trial.status();
      std::cerr << absl::StrFormat(
          "llama_cpp with %s, ubatch %u: %u tokens read in %.2f s, %.1f ms per token expected\n",
          kv_type, ubatch, std::min(n_prompt, kTrialTokens), trial->prefill_s, trial->decode_ms);
      if (trial->prefill_s < prefill_s) {
        prefill_s = trial->prefill_s;
        best.prefill = settings;
      }
      if (trial->decode_ms < decode_ms) {
        decode_ms = trial->decode_ms;
        best.decode = settings;
      }
    }
  }
  // The ubatch plays no part in decoding: one process does both where the format allows.
  if (best.decode.kv_type == best.prefill.kv_type) best.decode = best.prefill;
  return best;
}

}  // namespace varve::cli
