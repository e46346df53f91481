// What an engine's process is told and answers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "mri/kind/runtime.h"
#include "tools/varve/bench_process.h"
#include "tools/varve/command.h"
#include "tools/varve/eval_stack.h"

namespace varve::cli {

// The first word after "bench" that makes the program an engine's process.
inline constexpr const char* kEngineWord = "engine-process";

struct EngineSetup {
  bool is_peer = false;         // llama.cpp on `model_path`, instead of the profile's stack
  std::string model_path;       // for the peer
  Settings settings;            // above the profile
  std::vector<int32_t> tokens;  // prompt, and behind it what is decoded; also the longest context
  uint64_t n_vocabulary = 0;
};

struct EngineTimes {
  double prefill_s = 0;           // 0 when the text had been read before
  std::vector<double> decode_ms;  // of each token
  double peak_rss_mb = 0;         // 10^6 bytes, of the process since its start
  mri_kv_usage usage{};
};

// From the parent's side.
class BenchEngine {
 public:
  // Starts a process and loads the model. `profile_arguments`: the --profile and --set of this run.
  static absl::StatusOr<std::unique_ptr<BenchEngine>> start(
      const std::vector<std::string>& profile_arguments, const EngineSetup& setup);

  // Reads the first `n_prompt` tokens (0: goes on behind the last token of the run before), then
  // decodes `n_decode` tokens, given, not chosen: every engine does the same work.
  absl::StatusOr<EngineTimes> run(uint64_t n_prompt, uint64_t n_decode);

 private:
  explicit BenchEngine(std::unique_ptr<EngineProcess> process) : process_(std::move(process)) {}
  std::unique_ptr<EngineProcess> process_;
};

// The process itself: answers lines until the parent closes the socket.
int engine_process(const Arguments& arguments);

}  // namespace varve::cli
