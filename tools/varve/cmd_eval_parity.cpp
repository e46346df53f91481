// varve eval parity: is the forward pass right? Teacher-forced against libllama in f32.
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "adapters/light/model/model_error.h"
#include "adapters/light/model/requantise.h"
#include "adapters/light/model/tokenizer.h"
#include "tools/varve/cmd_eval.h"
#include "tools/varve/eval_stack.h"
#include "tools/varve/eval_texts.h"
#include "tools/varve/progress.h"

namespace varve::cli {
namespace po = boost::program_options;
namespace {

constexpr uint64_t kStepTokens = 256;  // their logits are kept: 50 MB for a vocabulary of 49,152
constexpr double kMeanKldMax = 1e-3, kTop1Min = 0.985;  // bf16 against f32; libllama's own 4-bit
                                                        // path stands at 3.5e-3 and 0.965

// Of a path, the same in every run.
uint64_t digest(const std::string& text) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

// Made once for each model file. Its vocabulary must be as large as the profile's runtime says its
// own is.
absl::StatusOr<std::string> f32_copy(const std::string& model_path, uint64_t n_vocabulary) {
  namespace fs = std::filesystem;
  if (model_path.empty()) {
    return absl::InvalidArgumentError(
        "found no model file; expected a GGUF file in model.path or VARVE_MODEL");
  }
  const std::string cache = cache_directory();
  if (cache.empty()) {
    return absl::FailedPreconditionError(
        "found none of VARVE_CACHE, XDG_CACHE_HOME and HOME set; expected a folder for the f32 "
        "copy of the model");
  }
  try {
    const fs::path folder = fs::path(cache) / "f32";
    fs::create_directories(folder);
    const std::string source = fs::canonical(model_path).string();
    const std::string copy = (folder / absl::StrFormat("%016x.gguf", digest(source))).string();
    std::cerr << "reference: the f32 copy " << copy << "\n";
    light::write_f32_copy(source, copy);
    const uint64_t n_found = light::Tokenizer(copy, "").vocab_size();
    if (n_found != n_vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat(source, ": found ", n_found, " tokens in the vocabulary; expected the ",
                       n_vocabulary, " of the profile's runtime: does it run another model?"));
    }
    return copy;
  } catch (const light::ModelError& error) {
    return absl::InvalidArgumentError(error.what());
  } catch (const fs::filesystem_error& error) {
    return absl::InvalidArgumentError(absl::StrCat("the f32 copy: ", error.what()));
  }
}

absl::StatusOr<std::unique_ptr<Session>> start(const mri::Peer<mri_runtime_v1>& runtime,
                                               uint64_t n_vocabulary,
                                               std::span<const int32_t> tokens,
                                               const std::atomic<uint32_t>* cancel) {
  SessionOptions options;
  options.max_tokens = tokens.size();
  options.cancel = cancel;
  return Session::start(runtime.table, runtime.self, n_vocabulary, tokens.first(1),
                        std::move(options));
}

// Of every position but the last, which has no next token.
absl::StatusOr<std::vector<LogitsDifference>> compare(const mri::Peer<mri_runtime_v1>& reference,
                                                      const Model& model,
                                                      std::span<const int32_t> tokens,
                                                      const std::atomic<uint32_t>& cancel) {
  const uint64_t n_vocabulary = model.info.vocab_size;
  const absl::StatusOr<std::unique_ptr<Session>> theirs =
      start(reference, n_vocabulary, tokens, &cancel);
  if (!theirs.ok()) return theirs.status();
  const absl::StatusOr<std::unique_ptr<Session>> ours =
      start(model.runtime, n_vocabulary, tokens, &cancel);
  if (!ours.ok()) return ours.status();
  std::vector<LogitsDifference> differences = {
      compare_logits((*theirs)->logits(), (*ours)->logits(), tokens[1])};
  std::vector<float> expected(kStepTokens * n_vocabulary), found(kStepTokens * n_vocabulary);
  Progress progress;
  for (uint64_t at = 1; at + 1 < tokens.size();) {
    if (cancel.load() != 0) return absl::CancelledError("interrupted");
    const uint64_t n = std::min(kStepTokens, tokens.size() - 1 - at);
    absl::Status status = append_all_logits(reference, **theirs, tokens.subspan(at, n), expected);
    if (status.ok())
      status = append_all_logits(model.runtime, **ours, tokens.subspan(at, n), found);
    if (!status.ok()) return status;
    for (uint64_t i = 0; i < n; ++i) {
      const auto row = [&](const std::vector<float>& logits) {
        return std::span<const float>(logits).subspan(i * n_vocabulary, n_vocabulary);
      };
      differences.push_back(compare_logits(row(expected), row(found), tokens[at + i + 1]));
    }
    at += n;
    progress.update(at + 1, tokens.size());
  }
  return differences;
}

absl::StatusOr<Fidelity> measure(const CommandLine& line, const Profile& profile,
                                 uint64_t n_tokens) {
  const std::atomic<uint32_t>& cancel = catch_interrupts();
  const absl::StatusOr<std::string> path = profile.path("model", "path");
  if (!path.ok()) return path.status();
  const absl::StatusOr<Model> model = load_model(profile);
  if (!model.ok()) return model.status();
  const absl::StatusOr<std::vector<std::vector<int32_t>>> texts =
      text_windows(model->text, line.list("text"), n_tokens, 1);
  if (!texts.ok()) return texts.status();
  absl::StatusOr<std::string> copy = f32_copy(*path, model->info.vocab_size);
  if (!copy.ok()) return copy.status();
  const absl::StatusOr<Profile> peer =
      peer_profile(line.profile_sources(), *copy,
                   {"runtime.kv_type=f32", "runtime.flash_attention=false",
                    absl::StrCat("runtime.max_tokens=", n_tokens)});
  if (!peer.ok()) return peer.status();
  const absl::StatusOr<LoadedStack> reference = load_profile_stack(*peer);
  if (!reference.ok()) return reference.status();
  const absl::StatusOr<std::vector<LogitsDifference>> differences =
      compare(reference->runtime, *model, texts->front(), cancel);
  if (!differences.ok()) return differences.status();
  return summarise(*differences);
}

}  // namespace

int eval_parity(const Arguments& arguments) {
  CommandLine line(
      "varve eval parity [option]...",
      "Reads a text with the profile's stack and with libllama, in f32 throughout and on an f32 "
      "copy of the same\n"
      "weights (made once, 4 bytes per weight, in the cache folder), and compares the "
      "probabilities of every next token.");
  line.add()("tokens", po::value<uint64_t>()->default_value(2048)->value_name("N"),
             "length of the text")(
      "text", po::value<std::vector<std::string>>()->value_name("FILE")->composing(),
      "text to read; repeatable (default: the document of tools/setup)")(
      "check",
      "exit with 1 when the mean KLD is above 1e-3 or the same token is likeliest in "
      "less than 98.5 %");
  if (const std::optional<int> done = line.parse(arguments)) return *done;
  const auto n_tokens = line.get<uint64_t>("tokens");
  if (n_tokens < 2) return line.usage_error("expected --tokens of at least 2");
  const absl::StatusOr<Profile> profile = line.profile();
  if (!profile.ok()) return report(profile.status(), kExitUsage);
  const absl::StatusOr<Fidelity> fidelity = measure(line, *profile, n_tokens);
  if (!fidelity.ok()) return report(fidelity.status(), kExitFailure);
  if (line.json()) {
    nlohmann::ordered_json json = fidelity_json(*fidelity);
    json["tokens"] = n_tokens;
    std::cout << json.dump(2) << "\n";
  } else {
    std::cout << fidelity_text(*fidelity) << "; " << count_text(n_tokens) << " tokens\n";
  }
  const bool good = fidelity->mean_kld <= kMeanKldMax && fidelity->top1_agreement >= kTop1Min;
  return line.has("check") && !good ? kExitFailure : kExitOk;
}

}  // namespace varve::cli
