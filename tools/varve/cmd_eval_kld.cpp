// varve eval kld: what the profile's memory policy changes in the model's probabilities.
#include <algorithm>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "core/config/options.h"
#include "tools/varve/cmd_eval.h"
#include "tools/varve/eval_stack.h"
#include "tools/varve/eval_texts.h"
#include "tools/varve/progress.h"

namespace varve::cli {
namespace po = boost::program_options;
namespace {

// Bounds of the bands: what a profile keeps hot, warm and cold by default.
constexpr uint64_t kBandBounds[] = {0, 2048, 32768, 65536 + 2048, UINT64_MAX};
constexpr size_t kBands = std::size(kBandBounds) - 1;

size_t band_of(uint64_t position) {
  size_t band = 0;
  while (position >= kBandBounds[band + 1]) ++band;
  return band;
}

struct Request {
  uint64_t length, n_positions, n_texts;
  bool all_bands;
  std::vector<std::string> paths;
};

// One text read up to `end`, with logits after each of the positions [first, end - 1).
struct Stretch {
  std::span<const int32_t> tokens;  // [0, end)
  uint64_t first;                   // the first measured position's token is tokens[first]
  uint64_t n_measured() const { return tokens.size() - 1 - first; }
};

// [n_measured][vocabulary], from single-token steps after a prefill.
absl::StatusOr<std::vector<float>> read_logits(const Model& model, const RuntimeOptions& options,
                                               const Stretch& stretch, const char* what,
                                               const std::atomic<uint32_t>& cancel,
                                               mri_kv_usage* usage) {
  std::cerr << what << ": " << count_text(stretch.tokens.size()) << " tokens\n";
  Progress progress;
  SessionOptions with;
  with.chunk_tokens = options.prefill_chunk_tokens;
  with.budget_bytes = options.kv_budget_bytes;
  with.max_tokens = stretch.tokens.size();
  with.cancel = &cancel;
  with.progress = [&](uint64_t done, uint64_t n) { progress.update(done, n); };
  absl::StatusOr<std::unique_ptr<Session>> session =
      model.start(stretch.tokens.first(stretch.first), std::move(with));
  if (!session.ok()) return session.status();
  std::vector<float> logits;
  logits.reserve(stretch.n_measured() * model.info.vocab_size);
  for (uint64_t at = stretch.first; at + 1 < stretch.tokens.size(); ++at) {
    const absl::Status status = (*session)->append(stretch.tokens.subspan(at, 1));
    if (!status.ok()) return status;
    logits.insert(logits.end(), (*session)->logits().begin(), (*session)->logits().end());
  }
  *usage = (*session)->usage();
  return logits;
}

struct Outcome {
  std::vector<LogitsDifference> last;  // those at the full length
  std::vector<LogitsDifference> by_band[kBands];
  mri_kv_usage usage{};  // of the last text, under the profile
};

class Comparison {
 public:
  Comparison(const Profile& profile, const Model& model, const Model& exact)
      : options_(runtime_options(profile)),
        model_(model),
        exact_(exact),
        cancel_(catch_interrupts()) {}

  absl::StatusOr<Outcome> run(const Request& request) const {
    const absl::StatusOr<std::vector<std::vector<int32_t>>> texts =
        text_windows(model_.text, request.paths, request.length, request.n_texts);
    if (!texts.ok()) return texts.status();
    Outcome outcome;
    for (size_t t = 0; t < texts->size(); ++t) {
      const std::string name = absl::StrCat("text ", t + 1, " of ", texts->size());
      const std::span<const int32_t> text = (*texts)[t];
      for (const uint64_t end : ends(request)) {
        const uint64_t n = std::min(request.n_positions, end / 2);
        const Stretch stretch{text.first(end), end - n - 1};
        const absl::Status status = compare(stretch, name, end == request.length, outcome);
        if (!status.ok()) return status;
      }
    }
    return outcome;
  }

 private:
  // Where to measure: at the end of every lower band too, when asked for.
  static std::vector<uint64_t> ends(const Request& request) {
    std::vector<uint64_t> ends;
    for (size_t band = 1; band < kBands && request.all_bands; ++band) {
      if (kBandBounds[band] < request.length) ends.push_back(kBandBounds[band]);
    }
    ends.push_back(request.length);
    return ends;
  }

  absl::Status compare(const Stretch& stretch, const std::string& name, bool is_last,
                       Outcome& outcome) const {
    mri_kv_usage exact_usage{};
    const absl::StatusOr<std::vector<float>> found = read_logits(
        model_, options_, stretch, (name + ", profile").c_str(), cancel_, &outcome.usage);
    if (!found.ok()) return found.status();
    const absl::StatusOr<std::vector<float>> expected =
        read_logits(exact_, options_, stretch, (name + ", exact").c_str(), cancel_, &exact_usage);
    if (!expected.ok()) return expected.status();
    const uint64_t n_vocabulary = model_.info.vocab_size;
    std::vector<LogitsDifference> differences;
    for (uint64_t i = 0; i < stretch.n_measured(); ++i) {
      const auto row = [&](const std::vector<float>& logits) {
        return std::span<const float>(logits).subspan(i * n_vocabulary, n_vocabulary);
      };
      const uint64_t position = stretch.first + i;
      differences.push_back(
          compare_logits(row(*expected), row(*found), stretch.tokens[position + 1]));
      outcome.by_band[band_of(position)].push_back(differences.back());
    }
    std::cerr << "  " << fidelity_text(summarise(differences)) << "\n";
    if (is_last) outcome.last.insert(outcome.last.end(), differences.begin(), differences.end());
    return absl::OkStatus();
  }

  const RuntimeOptions options_;
  const Model& model_;
  const Model& exact_;
  const std::atomic<uint32_t>& cancel_;
};

absl::StatusOr<Outcome> measure(const ProfileSources& sources, const Profile& profile,
                                const Request& request) {
  const absl::StatusOr<Profile> exact_with = exact_profile(sources);
  if (!exact_with.ok()) return exact_with.status();
  const absl::StatusOr<Model> model = load_model(profile);
  if (!model.ok()) return model.status();
  if (request.length > model->max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("found --length ", request.length,
                                                   "; expected at most ", model->max_tokens,
                                                   " (runtime.max_tokens or the model's limit)"));
  }
  const absl::StatusOr<Model> exact = load_model(*exact_with);
  if (!exact.ok()) return exact.status();
  return Comparison(profile, *model, *exact).run(request);
}

void print_json(const Outcome& outcome, const Request& request) {
  nlohmann::ordered_json json = fidelity_json(summarise(outcome.last));
  json["length"] = request.length;
  json["texts"] = request.n_texts;
  json["positions"] = outcome.last.size();
  json["bands"] = nlohmann::ordered_json::array();
  for (size_t band = 0; band < kBands; ++band) {
    if (outcome.by_band[band].empty()) continue;
    nlohmann::ordered_json one = {{"from_token", kBandBounds[band]}};
    if (band + 1 < kBands) one["to_token"] = kBandBounds[band + 1];
    one["positions"] = outcome.by_band[band].size();
    one.update(fidelity_json(summarise(outcome.by_band[band])));
    json["bands"].push_back(std::move(one));
  }
  json["kv_bytes"] = kv_json(outcome.usage);
  std::cout << json.dump(2) << "\n";
}

void print_text(const Outcome& outcome, const Request& request) {
  std::cout << fidelity_text(summarise(outcome.last)) << "\n"
            << count_text(outcome.last.size()) << " positions in " << request.n_texts
            << " texts at " << count_text(request.length) << " tokens\n";
  for (size_t band = 0; band < kBands; ++band) {
    if (!request.all_bands || outcome.by_band[band].empty()) continue;
    std::cout << "from token " << count_text(kBandBounds[band]) << ": "
              << fidelity_text(summarise(outcome.by_band[band])) << "\n";
  }
  const mri_kv_usage& usage = outcome.usage;
  std::cout << "KV " << bytes_text(usage.hot_bytes) << " hot, " << bytes_text(usage.warm_bytes)
            << " warm, " << bytes_text(usage.cold_bytes) << " cold, "
            << bytes_text(usage.backing_bytes) << " backing; bf16 would take "
            << bytes_text(usage.bf16_bytes) << "\n";
}

}  // namespace

int eval_kld(const Arguments& arguments) {
  CommandLine line(
      "varve eval kld --length N [option]...",
      "Reads real texts with the profile's stack and with exact attention over uncompressed "
      "memory, then compares\n"
      "the probabilities of the last positions, one token at a time.");
  line.add()("length", po::value<uint64_t>()->default_value(8192)->value_name("N"),
             "tokens of each text")("positions",
                                    po::value<uint64_t>()->default_value(256)->value_name("P"),
                                    "compared at the end of each text")(
      "texts", po::value<uint64_t>()->default_value(3)->value_name("K"),
      "texts: stretches of the files, spread evenly")(
      "text", po::value<std::vector<std::string>>()->value_name("FILE")->composing(),
      "text to read; repeatable (default: the document of tools/setup, licences, manuals)")(
      "compute", po::value<std::string>()->default_value("f32")->value_name("f32|profile"),
      "number format of both sides' products: f32 shows what the memory costs and nothing else; "
      "with "
      "the profile's bf16, rounding that differs between the two adds to it")(
      "bands", "measure at 2K, 32K and 66K tokens too, where the text is longer");
  if (const std::optional<int> done = line.parse(arguments)) return *done;
  const Request request{line.get<uint64_t>("length"), line.get<uint64_t>("positions"),
                        line.get<uint64_t>("texts"), line.has("bands"), line.list("text")};
  if (request.length < 4 || request.n_positions < 1 || request.n_positions > request.length / 2)
    return line.usage_error("expected --length of at least 4 and --positions from 1 to half of it");
  if (request.n_texts < 1 || request.n_texts > 1000)
    return line.usage_error("expected --texts from 1 to 1000");
  const auto& compute = line.get<std::string>("compute");
  if (compute != "f32" && compute != "profile")
    return line.usage_error("expected --compute f32 or profile");
  absl::StatusOr<Profile> profile = line.profile();
  if (!profile.ok()) return report(profile.status(), kExitUsage);
  ProfileSources sources = line.profile_sources();
  if (compute == "f32" && profile->text("runtime", "plugin") == "light") {
    sources.overrides.emplace_back("runtime.compute=f32");
    profile = Profile::load(sources);
    if (!profile.ok()) return report(profile.status(), kExitUsage);
  }
  const absl::StatusOr<Outcome> outcome = measure(sources, *profile, request);
  if (!outcome.ok()) return report(outcome.status(), kExitFailure);
  if (line.json()) {
    print_json(*outcome, request);
  } else {
    print_text(*outcome, request);
  }
  return kExitOk;
}

}  // namespace varve::cli
