#include "tools/varve/bench_engine.h"

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "core/config/options.h"
#include "tools/varve/model.h"

namespace varve::cli {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// "VmHWM: 123 kB" of this process.
double peak_rss_mb() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("VmHWM:", 0) != 0) continue;
    double kib = 0;
    std::istringstream(line.substr(6)) >> kib;
    return kib * 1024 / 1e6;
  }
  return 0;
}

Json usage_json(const mri_kv_usage& usage) {
  return {{"hot", usage.hot_bytes},
          {"warm", usage.warm_bytes},
          {"cold", usage.cold_bytes},
          {"backing", usage.backing_bytes},
          {"bf16", usage.bf16_bytes}};
}

mri_kv_usage usage_from(const Json& json) {
  mri_kv_usage usage{};
  usage.hot_bytes = json.at("hot");
  usage.warm_bytes = json.at("warm");
  usage.cold_bytes = json.at("cold");
  usage.backing_bytes = json.at("backing");
  usage.bf16_bytes = json.at("bf16");
  return usage;
}

// The child's side: one stack, and the session of the last run.
class Engine {
 public:
  absl::Status load(const CommandLine& line, const Json& setup) {
    ProfileSources sources = line.profile_sources();
    const auto settings = setup.at("settings").get<Settings>();
    sources.overrides.insert(sources.overrides.end(), settings.begin(), settings.end());
    const absl::StatusOr<Profile> profile =
        setup.at("is_peer").get<bool>()
            ? peer_profile(line.profile_sources(), setup.at("model_path"), settings)
            : Profile::load(sources);
    if (!profile.ok()) return profile.status();
    options_ = runtime_options(*profile);
    tokens_ = setup.at("tokens").get<std::vector<int32_t>>();
    n_vocabulary_ = setup.at("n_vocabulary");
    absl::StatusOr<LoadedStack> loaded = load_profile_stack(*profile);
    if (!loaded.ok()) return loaded.status();
    stack_ = std::make_unique<LoadedStack>(*std::move(loaded));
    return absl::OkStatus();
  }

  absl::StatusOr<Json> run(uint64_t n_prompt, uint64_t n_decode) {
    EngineTimes times;
    if (n_prompt > 0) {
      session_.reset();
      SessionOptions with;
      with.chunk_tokens = options_.prefill_chunk_tokens;
      with.budget_bytes = options_.kv_budget_bytes;
      with.max_tokens = tokens_.size();
      const auto start = std::chrono::steady_clock::now();
      absl::StatusOr<std::unique_ptr<Session>> session =
          Session::start(stack_->runtime.table, stack_->runtime.self, n_vocabulary_,
                         std::span(tokens_).first(n_prompt), std::move(with));
      if (!session.ok()) return session.status();
      times.prefill_s = seconds_since(start);
      session_ = *std::move(session);
    }
    if (session_ == nullptr) return absl::FailedPreconditionError("found no text read before");
    for (uint64_t i = 0; i < n_decode; ++i) {
      const auto start = std::chrono::steady_clock::now();
      const absl::Status status =
          session_->append(std::span(tokens_).subspan(session_->n_tokens(), 1));
      if (!status.ok()) return status;
      times.decode_ms.push_back(1e3 * seconds_since(start));
    }
    return Json{{"prefill_s", times.prefill_s},
                {"decode_ms", times.decode_ms},
                {"peak_rss_mb", peak_rss_mb()},
                {"usage", usage_json(session_->usage())}};
  }

 private:
  RuntimeOptions options_;
  std::vector<int32_t> tokens_;
  uint64_t n_vocabulary_ = 0;
  std::unique_ptr<LoadedStack> stack_;
  std::unique_ptr<Session> session_;  // before the stack
};

}  // namespace

absl::StatusOr<std::unique_ptr<BenchEngine>> BenchEngine::start(
    const std::vector<std::string>& profile_arguments, const EngineSetup& setup) {
  std::vector<std::string> arguments = {"bench", kEngineWord};
  arguments.insert(arguments.end(), profile_arguments.begin(), profile_arguments.end());
  absl::StatusOr<std::unique_ptr<EngineProcess>> process = EngineProcess::start(arguments);
  if (!process.ok()) return process.status();
  const absl::StatusOr<Json> ready = (*process)->ask({{"is_peer", setup.is_peer},
                                                      {"model_path", setup.model_path},
                                                      {"settings", setup.settings},
                                                      {"tokens", setup.tokens},
                                                      {"n_vocabulary", setup.n_vocabulary}});
  if (!ready.ok()) return ready.status();
  return std::unique_ptr<BenchEngine>(new BenchEngine(*std::move(process)));
}

absl::StatusOr<EngineTimes> BenchEngine::run(uint64_t n_prompt, uint64_t n_decode) {
  const absl::StatusOr<Json> answer =
      process_->ask({{"n_prompt", n_prompt}, {"n_decode", n_decode}});
  if (!answer.ok()) return answer.status();
  EngineTimes times;
  times.prefill_s = answer->at("prefill_s");
  times.decode_ms = answer->at("decode_ms").get<std::vector<double>>();
  times.peak_rss_mb = answer->at("peak_rss_mb");
  times.usage = usage_from(answer->at("usage"));
  return times;
}

int engine_process(const Arguments& arguments) {
  CommandLine line("varve bench engine-process",
                   "Started by 'varve bench', which talks to it over its standard input.");
  if (const std::optional<int> done = line.parse(arguments)) return *done;
  LineSocket parent(STDIN_FILENO);
  Engine engine;
  bool is_loaded = false;
  for (;;) {
    const absl::StatusOr<Json> told = parent.read();
    if (!told.ok()) return kExitOk;  // the parent is done
    absl::StatusOr<Json> answer = Json{{"ready", true}};
    try {
      if (is_loaded) {
        answer = engine.run(told->at("n_prompt"), told->at("n_decode"));
      } else if (absl::Status status = engine.load(line, *told); !status.ok()) {
        answer = status;
      }
    } catch (const Json::exception& error) {
      answer = absl::InvalidArgumentError(error.what());
    }
    if (!answer.ok()) {
      static_cast<void>(parent.write({{"error", std::string(answer.status().message())}}));
      return kExitFailure;
    }
    is_loaded = true;
    if (!parent.write(*answer).ok()) return kExitFailure;
  }
}

}  // namespace varve::cli
