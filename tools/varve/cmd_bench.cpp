// varve bench: prefill, decode and memory of the profile's stack, beside llama.cpp on the same file
// and tokens.
#include <algorithm>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "adapters/light/model/model_error.h"
#include "adapters/light/model/tokenizer.h"
#include "tools/varve/bench_peer.h"
#include "tools/varve/eval_stats.h"
#include "tools/varve/eval_texts.h"
#include "tools/varve/machine.h"
#include "tools/varve/model.h"

namespace varve::cli {
namespace po = boost::program_options;
namespace {

// A peer that only decodes reads longer texts once, not in every round; the few tokens that its
// context then grows by make no difference at such lengths.
constexpr uint64_t kReadOnceAbove = 4096;

constexpr double kPeakSeconds = 0.5;  // for each of the machine's peaks

struct Request {
  uint64_t n_prompt, n_decode, n_rounds;
  uint32_t n_threads;
  bool against_peer;
  std::vector<std::string> kv_types;
  std::vector<std::string> paths;
  std::vector<std::string> profile_arguments;
};

// All rounds of an engine.
struct Measured {
  std::vector<double> prefill_s, decode_ms;
  double peak_rss_mb = 0;
  mri_kv_usage usage{};
  double prefill() const { return median(prefill_s); }
  double decode() const { return median(decode_ms); }
  void add(const EngineTimes& times) {
    if (times.prefill_s > 0) prefill_s.push_back(times.prefill_s);
    decode_ms.insert(decode_ms.end(), times.decode_ms.begin(), times.decode_ms.end());
    peak_rss_mb = times.peak_rss_mb;
    usage = times.usage;
  }
};

struct Subject {
  mri_model_info info;
  std::vector<int32_t> tokens;
  std::string model_path;
};

struct Outcome {
  Measured varve, peer;
  PeerChoice peer_choice;
};

// What is measured; the model is gone again when the engines start.
absl::StatusOr<Subject> examine(const Profile& profile, const Request& request) {
  const absl::StatusOr<Model> model = load_model(profile);
  if (!model.ok()) return model.status();
  const uint64_t n_tokens = request.n_prompt + request.n_decode * request.n_rounds;
  if (n_tokens > model->max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("found ", count_text(n_tokens),
                     " tokens of prompt and all rounds' decoding; expected at "
                     "most ",
                     count_text(model->max_tokens), " (runtime.max_tokens or the model's limit)"));
  }
  absl::StatusOr<std::vector<std::vector<int32_t>>> texts =
      text_windows(model->text, request.paths, n_tokens, 1);
  if (!texts.ok()) return texts.status();
  absl::StatusOr<std::string> path = profile.path("model", "path");
  if (!path.ok()) return path.status();
  if (request.against_peer) {
    if (path->empty()) {
      return absl::InvalidArgumentError(
          "found no model file; expected a GGUF file in model.path or VARVE_MODEL, for llama.cpp");
    }
    try {
      const uint64_t n_found = light::Tokenizer(*path, "").vocab_size();
      if (n_found != model->info.vocab_size) {
        return absl::InvalidArgumentError(
            absl::StrCat(*path, ": found ", n_found, " tokens in the vocabulary; expected the ",
                         model->info.vocab_size, " of the profile's runtime"));
      }
    } catch (const light::ModelError& error) {
      return absl::InvalidArgumentError(error.what());
    }
  }
  return Subject{model->info, std::move(texts->front()), *std::move(path)};
}

EngineSetup setup_of(const Subject& subject, const Request& request, uint64_t n_tokens) {
  EngineSetup setup;
  setup.settings = {absl::StrCat("runtime.threads=", request.n_threads)};
  setup.tokens.assign(subject.tokens.begin(),
                      subject.tokens.begin() + static_cast<ptrdiff_t>(n_tokens));
  setup.n_vocabulary = subject.info.vocab_size;
  return setup;
}

// One engine among those that take turns.
struct Turn {
  std::string name;
  std::unique_ptr<BenchEngine> engine;
  Measured* into;
  uint64_t n_prompt, n_decode;
  bool reads_once;
};

absl::StatusOr<Turn> make_turn(std::string name, const EngineSetup& setup, const Request& request,
                               Measured* into) {
  absl::StatusOr<std::unique_ptr<BenchEngine>> engine =
      BenchEngine::start(request.profile_arguments, setup);
  if (!engine.ok()) return engine.status();
  return Turn{std::move(name), *std::move(engine), into, request.n_prompt, request.n_decode, false};
}

// The peer's engines: one, or two where prefill and decode want different formats.
absl::Status add_peer_turns(const Subject& subject, const Request& request, Outcome& outcome,
                            Measured& decoder, std::vector<Turn>& turns) {
  EngineSetup setup = setup_of(subject, request, request.n_prompt + request.n_decode);
  setup.is_peer = true;
  setup.model_path = subject.model_path;
  const std::string threads = setup.settings.front();
  EngineSetup trial = setup_of(subject, request, subject.tokens.size());
  trial.is_peer = true;
  trial.model_path = subject.model_path;
  absl::StatusOr<PeerChoice> choice =
      choose_peer(request.profile_arguments, trial, request.n_prompt, request.kv_types);
  if (!choice.ok()) return choice.status();
  outcome.peer_choice = *choice;
  const bool is_one = choice->prefill == choice->decode;
  setup.settings = peer_settings(choice->prefill, setup.tokens.size());
  setup.settings.push_back(threads);
  absl::StatusOr<Turn> turn = make_turn("llama_cpp", setup, request, &outcome.peer);
  if (!turn.ok()) return turn.status();
  if (!is_one) turn->n_decode = 0;
  turns.push_back(*std::move(turn));
  if (is_one) return absl::OkStatus();
  const bool reads_once = request.n_prompt > kReadOnceAbove;
  if (reads_once) setup.tokens = subject.tokens;
  setup.settings = peer_settings(choice->decode, setup.tokens.size());
  setup.settings.push_back(threads);
  turn = make_turn("llama_cpp, decoding", setup, request, &decoder);
  if (!turn.ok()) return turn.status();
  turn->reads_once = reads_once;
  turns.push_back(*std::move(turn));
  return absl::OkStatus();
}

absl::StatusOr<Outcome> measure(const Subject& subject, const Request& request) {
  Outcome outcome;
  Measured decoder;
  std::vector<Turn> turns;
  absl::StatusOr<Turn> own =
      make_turn("varve", setup_of(subject, request, request.n_prompt + request.n_decode), request,
                &outcome.varve);
  if (!own.ok()) return own.status();
  turns.push_back(*std::move(own));
  if (request.against_peer) {
    const absl::Status status = add_peer_turns(subject, request, outcome, decoder, turns);
    if (!status.ok()) return status;
  }
  for (uint64_t round = 0; round < request.n_rounds; ++round) {
    for (Turn& turn : turns) {
      const bool goes_on = turn.reads_once && round > 0;
      const absl::StatusOr<EngineTimes> times =
          turn.engine->run(goes_on ? 0 : turn.n_prompt, turn.n_decode);
      if (!times.ok()) return times.status();
      turn.into->add(*times);
      std::cerr << absl::StrFormat("round %u of %u, %s: prefill %.2f s, decode %.2f ms\n",
                                   round + 1, request.n_rounds, turn.name, times->prefill_s,
                                   median(times->decode_ms));
    }
  }
  if (!decoder.decode_ms.empty()) {
    outcome.peer.decode_ms = decoder.decode_ms;
    outcome.peer.peak_rss_mb = std::min(outcome.peer.peak_rss_mb, decoder.peak_rss_mb);
  }
  return outcome;
}

// How much of what the machine can do at best was used.
struct Shares {
  double gemm_peak = 0, bandwidth = 0;
  const char* counted = "";
};

Shares shares_of(const Profile& profile, const Subject& subject, const Request& request,
                 const Measured& measured, const Machine& machine) {
  const mri_model_info& info = subject.info;
  const bool is_dense = profile.text("attention", "plugin") == "dense";
  const auto n = static_cast<double>(request.n_prompt);
  const double rows = double{1.0 * info.n_heads} * info.head_dim;
  const double kv_rows = double{1.0 * info.n_kv_heads} * info.head_dim;
  const double weights =
      1.0 * info.n_layers * info.n_embd * (2 * rows + 2 * kv_rows + 3.0 * info.n_ff);
  double operations = 2 * weights * n;
  double bytes = static_cast<double>(info.weight_bytes);
  Shares shares;
  shares.counted = "linear layers; weights";
  if (is_dense) {
    operations += 2.0 * info.n_layers * rows * n * (n + 1);  // QK and PV, causal
    bytes += static_cast<double>(measured.usage.hot_bytes + measured.usage.warm_bytes +
                                 measured.usage.cold_bytes);
    shares.counted = "linear layers and causal attention; weights and all keys and values";
  }
  const Setting* compute = profile.find("runtime", "compute");
  const auto* format = compute == nullptr ? nullptr : std::get_if<std::string>(&compute->value);
  const bool is_f32 = format != nullptr && *format == "f32";
  // The machine's peaks are those of all cores.
  const double cores = std::min(1.0, 1.0 * request.n_threads / machine.n_cores);
  const double peak = 1e9 * cores * (is_f32 ? machine.gemm_f32_gflops : machine.gemm_bf16_gflops);
  const double read = 1e9 * cores * machine.read_gb_per_s;
  if (measured.prefill() > 0 && peak > 0) shares.gemm_peak = operations / measured.prefill() / peak;
  if (measured.decode() > 0 && read > 0)
    shares.bandwidth = bytes / (1e-3 * measured.decode()) / read;
  return shares;
}

double ratio(double theirs, double ours) { return ours > 0 ? theirs / ours : 0; }

Json outcome_json(const Outcome& outcome, const Shares& shares, const Request& request,
                  const Machine& machine) {
  const Measured& own = outcome.varve;
  Json json = {{"varve",
                {{"prefill_s", own.prefill()},
                 {"decode_ms", own.decode()},
                 {"peak_rss_mb", own.peak_rss_mb},
                 {"kv_bytes",
                  {{"hot", own.usage.hot_bytes},
                   {"warm", own.usage.warm_bytes},
                   {"cold", own.usage.cold_bytes},
                   {"backing", own.usage.backing_bytes},
                   {"bf16_equivalent", own.usage.bf16_bytes}}},
                 {"gemm_peak_share", shares.gemm_peak},
                 {"bandwidth_share", shares.bandwidth},
                 {"counted", shares.counted}}}};
  if (request.against_peer) {
    const Measured& peer = outcome.peer;
    json["llama_cpp"] = {{"prefill_s", peer.prefill()},
                         {"decode_ms", peer.decode()},
                         {"peak_rss_mb", peer.peak_rss_mb},
                         {"settings",
                          {{"prefill", peer_json(outcome.peer_choice.prefill)},
                           {"decode", peer_json(outcome.peer_choice.decode)}}}};
    json["ratio"] = {{"prefill", ratio(peer.prefill(), own.prefill())},
                     {"decode", ratio(peer.decode(), own.decode())},
                     {"memory", ratio(peer.peak_rss_mb, own.peak_rss_mb)}};
  }
  json["run"] = {{"prompt_tokens", request.n_prompt},
                 {"decode_tokens", request.n_decode},
                 {"rounds", request.n_rounds},
                 {"threads", request.n_threads}};
  json["machine"] = {{"cpu", machine.cpu_name},
                     {"kernel_target", machine.kernel_target},
                     {"cores", machine.n_cores},
                     {"read_gb_per_s", machine.read_gb_per_s},
                     {"gemm_f32_gflops", machine.gemm_f32_gflops},
                     {"gemm_bf16_gflops", machine.gemm_bf16_gflops}};
  return json;
}

void print_text(const Outcome& outcome, const Shares& shares, const Request& request) {
  const Measured& own = outcome.varve;
  const Measured& peer = outcome.peer;
  std::cout << absl::StrFormat("%s prompt tokens, %s decoded, %u rounds, %u threads\n\n",
                               count_text(request.n_prompt), count_text(request.n_decode),
                               request.n_rounds, request.n_threads);
  const auto row = [&](const char* what, double ours, double theirs, const char* unit) {
    std::cout << absl::StrFormat("%-12s%10.2f %-3s", what, ours, unit);
    if (request.against_peer)
      std::cout << absl::StrFormat("%10.2f %-3s%8.2f x", theirs, unit, ratio(theirs, ours));
    std::cout << "\n";
  };
  std::cout << "                 varve";
  if (request.against_peer) std::cout << "         llama_cpp   ratio";
  std::cout << "\n";
  row("prefill", own.prefill(), peer.prefill(), "s");
  row("decode", own.decode(), peer.decode(), "ms");
  row("peak memory", own.peak_rss_mb, peer.peak_rss_mb, "MB");
  std::cout << absl::StrFormat(
      "\nKV %s hot, %s warm, %s cold; bf16 would take %s\n"
      "prefill at %.0f %% of the GEMM peak, decode at %.0f %% of memory bandwidth (%s)\n",
      bytes_text(own.usage.hot_bytes), bytes_text(own.usage.warm_bytes),
      bytes_text(own.usage.cold_bytes), bytes_text(own.usage.bf16_bytes), 100 * shares.gemm_peak,
      100 * shares.bandwidth, shares.counted);
  if (request.against_peer) {
    std::cout << "llama_cpp: prefill with " << peer_json(outcome.peer_choice.prefill).dump()
              << ",\n           decode with " << peer_json(outcome.peer_choice.decode).dump()
              << "\n";
  }
}

// What the engines' processes need to find the same profile.
std::vector<std::string> profile_arguments(const CommandLine& line) {
  std::vector<std::string> arguments;
  const ProfileSources sources = line.profile_sources();
  if (!sources.path.empty()) arguments = {"--profile", sources.path};
  for (const std::string& assignment : sources.overrides) {
    arguments.emplace_back("--set");
    arguments.push_back(assignment);
  }
  return arguments;
}

absl::StatusOr<Request> read_request(const CommandLine& line, const Profile& profile) {
  Request request{line.get<uint64_t>("prompt-tokens"),
                  line.get<uint64_t>("decode-tokens"),
                  line.get<uint64_t>("rounds"),
                  line.get<uint32_t>("threads"),
                  line.get<std::string>("against") == "llama_cpp",
                  {"f16", "q8_0"},
                  line.list("text"),
                  profile_arguments(line)};
  if (request.n_threads == 0)
    request.n_threads = static_cast<uint32_t>(profile.integer("runtime", "threads"));
  const auto& kv = line.get<std::string>("peer-kv");
  if (kv != "auto") request.kv_types = {kv};
  if (kv != "auto" && kv != "f16" && kv != "q8_0")
    return absl::InvalidArgumentError("expected --peer-kv auto, f16 or q8_0");
  if (!request.against_peer && line.get<std::string>("against") != "none")
    return absl::InvalidArgumentError("expected --against llama_cpp or none");
  if (request.n_prompt < 1 || request.n_decode < 1 || request.n_rounds < 1 ||
      request.n_prompt > (1u << 30) || request.n_decode > (1u << 20) || request.n_rounds > 1000) {
    return absl::InvalidArgumentError(
        "expected --prompt-tokens, --decode-tokens and --rounds of at least 1");
  }
  return request;
}

}  // namespace

int cmd_bench(const Arguments& arguments) {
  if (!arguments.empty() && arguments.front() == kEngineWord)
    return engine_process(Arguments(arguments.begin() + 1, arguments.end()));
  CommandLine line(
      "varve bench [option]...",
      "Times reading and decoding of a real text with the profile's stack and with llama.cpp, on "
      "the same file, tokens\n"
      "and number of threads, in turns, each in a process of its own. llama.cpp gets its best "
      "settings, found by trial.\n"
      "Ratios above 1 say that varve is better. Medians of all rounds.");
  line.add()("prompt-tokens", po::value<uint64_t>()->default_value(2048)->value_name("N"),
             "tokens to read")("decode-tokens",
                               po::value<uint64_t>()->default_value(64)->value_name("M"),
                               "tokens to decode in each round")(
      "against", po::value<std::string>()->default_value("llama_cpp")->value_name("ENGINE"),
      "llama_cpp, or none: only the profile's stack")(
      "rounds", po::value<uint64_t>()->default_value(3)->value_name("R"), "turns of each engine")(
      "threads", po::value<uint32_t>()->default_value(0)->value_name("T"),
      "of each engine; 0: as the profile says, or one per core")(
      "peer-kv", po::value<std::string>()->default_value("auto")->value_name("TYPE"),
      "llama.cpp's format of keys and values: f16, q8_0, or auto: the faster one, for reading and "
      "decoding each")("text",
                       po::value<std::vector<std::string>>()->value_name("FILE")->composing(),
                       "text to read; repeatable (default: the document of tools/setup)");
  if (const std::optional<int> done = line.parse(arguments)) return *done;
  const absl::StatusOr<Profile> profile = line.profile();
  if (!profile.ok()) return report(profile.status(), kExitUsage);
  absl::StatusOr<Request> request = read_request(line, *profile);
  if (!request.ok()) return line.usage_error(std::string(request.status().message()));
  static_cast<void>(catch_interrupts());
  const absl::StatusOr<Subject> subject = examine(*profile, *request);
  if (!subject.ok()) return report(subject.status(), kExitFailure);
  const Machine machine = measure_machine(kPeakSeconds);
  if (request->n_threads == 0) request->n_threads = machine.n_cores;
  const absl::StatusOr<Outcome> outcome = measure(*subject, *request);
  if (!outcome.ok()) return report(outcome.status(), kExitFailure);
  const Shares shares = shares_of(*profile, *subject, *request, outcome->varve, machine);
  if (line.json()) {
    std::cout << outcome_json(*outcome, shares, *request, machine)
                     .dump(2, ' ', false, Json::error_handler_t::replace)
              << "\n";
  } else {
    print_text(*outcome, shares, *request);
  }
  return kExitOk;
}

}  // namespace varve::cli
