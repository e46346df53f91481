// varve eval recall: does the model still find a fact, wherever it stands in a long text?
//
// Five sentences of different kinds, each with a number of seven digits, are hidden in a real text.
// The text is read once; then a chat asks for each of them. The answer is begun for the model, up
// to the number: small models fail at instructions long before they fail at reading.
#include <algorithm>
#include <cmath>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/config/options.h"
#include "tools/varve/cmd_eval.h"
#include "tools/varve/eval_needles.h"
#include "tools/varve/eval_stack.h"
#include "tools/varve/eval_texts.h"
#include "tools/varve/progress.h"

namespace varve::cli {
namespace po = boost::program_options;
namespace {

constexpr size_t kDepths = 5;  // bins of by_depth

struct Request {
  uint64_t length, n_texts;
  bool fresh;  // read the text anew for each question, instead of forgetting the last one
  std::vector<std::string> paths;
};

struct Score {
  uint64_t digits = 0, digits_right = 0, samples = 0, samples_right = 0;
  void add(size_t n_right) {
    digits += kNeedleDigits;
    digits_right += n_right;
    samples += 1;
    samples_right += n_right == kNeedleDigits ? 1 : 0;
  }
  static double share(uint64_t part, uint64_t all) {
    return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
  }
  double accuracy() const { return share(digits_right, digits); }
  double strict() const { return share(samples_right, samples); }
};

struct Scores {
  Score all;
  Score by_depth[kDepths];
};

class Recall {
 public:
  Recall(const Profile& profile, const Model& model, const Request& request)
      : options_(runtime_options(profile)),
        system_prompt_(generate_options(profile).system_prompt),
        model_(model),
        request_(request),
        cancel_(catch_interrupts()) {}

  absl::StatusOr<Scores> run(const char* what) {
    absl::StatusOr<ChatFrame> frame = chat_frame(model_.text, system_prompt_);
    if (!frame.ok()) return frame.status();
    frame_ = *std::move(frame);
    uint64_t taken = 0;
    for (uint64_t t = 0; t < request_.n_texts; ++t) {
      const absl::StatusOr<uint64_t> n =
          needle_tokens(model_.text, frame_, make_needles(t, request_.n_texts));
      if (!n.ok()) return n.status();
      taken = std::max(taken, frame_.before_text.size() + *n);
    }
    if (request_.length < taken + 64) {
      return absl::InvalidArgumentError(absl::StrCat("found --length ", request_.length,
                                                     "; expected at least ", taken + 64,
                                                     ", for needles and questions"));
    }
    const absl::StatusOr<std::vector<std::vector<int32_t>>> texts =
        text_windows(model_.text, request_.paths, request_.length - taken, request_.n_texts);
    if (!texts.ok()) return texts.status();
    Scores scores;
    for (size_t t = 0; t < texts->size(); ++t) {
      const absl::Status status = ask_all((*texts)[t], t, scores);
      if (!status.ok()) return status;
      std::cerr << absl::StrFormat("%s, text %u of %u: %u of %u digits right so far\n", what, t + 1,
                                   texts->size(), scores.all.digits_right, scores.all.digits);
    }
    return scores;
  }

 private:
  absl::Status ask_all(const std::vector<int32_t>& filler, uint64_t t, Scores& scores) {
    const std::array<Needle, kNeedlesPerText> needles = make_needles(t, request_.n_texts);
    const absl::StatusOr<std::vector<int32_t>> hidden = hide(model_.text, filler, needles);
    if (!hidden.ok()) return hidden.status();
    std::vector<int32_t> prompt = frame_.before_text;
    prompt.insert(prompt.end(), hidden->begin(), hidden->end());
    std::unique_ptr<Session> session;
    for (size_t i = 0; i < kNeedlesPerText; ++i) {
      // In an order that has nothing to do with the text's.
      const Needle& needle = needles[(2 * i + t) % kNeedlesPerText];
      if (i == 0 || request_.fresh) {
        absl::StatusOr<std::unique_ptr<Session>> started = start(prompt);
        if (!started.ok()) return started.status();
        session = *std::move(started);
      } else {
        // An earlier answer in sight would be copied: each question finds the text alone.
        const absl::Status status =
            session->forget(prompt.size(), session->n_tokens() - prompt.size());
        if (!status.ok()) return status;
      }
      const absl::StatusOr<size_t> n_right = ask(*session, needle);
      if (!n_right.ok()) return n_right.status();
      scores.all.add(*n_right);
      scores.by_depth[std::min(kDepths - 1, static_cast<size_t>(needle.depth * kDepths))].add(
          *n_right);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Session>> start(std::span<const int32_t> prompt) {
    Progress progress;
    SessionOptions with;
    with.chunk_tokens = options_.prefill_chunk_tokens;
    with.budget_bytes = options_.kv_budget_bytes;
    with.max_tokens = request_.length;
    with.cancel = &cancel_;
    with.progress = [&](uint64_t done, uint64_t n) { progress.update(done, n); };
    return model_.start(prompt, std::move(with));
  }

  // How many digits come right, each after the right ones before it: all of them, exactly when the
  // model would write the whole number by itself.
  absl::StatusOr<size_t> ask(Session& session, const Needle& needle) {
    absl::StatusOr<std::vector<int32_t>> tokens = question_tokens(model_.text, frame_, needle);
    if (!tokens.ok()) return tokens.status();
    const absl::StatusOr<NumberTokens> number = number_tokens(model_.text, needle);
    if (!number.ok()) return number.status();
    tokens->insert(tokens->end(), number->lead.begin(), number->lead.end());
    absl::Status status = session.append(*tokens);
    size_t n_right = 0;
    const absl::StatusOr<std::unique_ptr<Sampler>> greedy = Sampler::make({}, *model_.stack);
    if (!greedy.ok()) return greedy.status();
    for (size_t i = 0; status.ok() && i < number->digits.size(); ++i) {
      const absl::StatusOr<int32_t> found = (*greedy)->sample(session.logits());
      if (!found.ok()) return found.status();
      if (*found == number->digits[i]) n_right += number->n_digits[i];
      status = session.append({&number->digits[i], 1});
    }
    if (!status.ok()) return status;
    return n_right;
  }

  const RuntimeOptions options_;
  const std::string system_prompt_;
  const Model& model_;
  const Request& request_;
  const std::atomic<uint32_t>& cancel_;
  ChatFrame frame_;
};

absl::StatusOr<Scores> measure(const Profile& profile, const Request& request, const char* what) {
  const absl::StatusOr<Model> model = load_model(profile);
  if (!model.ok()) return model.status();
  if (request.length > model->max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("found --length ", request.length,
                                                   "; expected at most ", model->max_tokens,
                                                   " (runtime.max_tokens or the model's limit)"));
  }
  return Recall(profile, *model, request).run(what);
}

void print_json(const Scores& scores, const Scores* exact, const Request& request) {
  nlohmann::ordered_json json = {{"accuracy", scores.all.accuracy()},
                                 {"accuracy_strict", scores.all.strict()}};
  if (exact != nullptr) {
    json["accuracy_exact"] = exact->all.accuracy();
    json["accuracy_exact_strict"] = exact->all.strict();
  }
  json["samples"] = scores.all.samples;
  json["length"] = request.length;
  json["texts"] = request.n_texts;
  json["by_depth"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < kDepths; ++i) {
    const Score& score = scores.by_depth[i];
    nlohmann::ordered_json one = {{"from", static_cast<double>(i) / kDepths},
                                  {"to", static_cast<double>(i + 1) / kDepths},
                                  {"samples", score.samples},
                                  {"accuracy", score.accuracy()},
                                  {"accuracy_strict", score.strict()}};
    if (exact != nullptr) one["accuracy_exact"] = exact->by_depth[i].accuracy();
    json["by_depth"].push_back(std::move(one));
  }
  std::cout << json.dump(2) << "\n";
}

void print_text(const Scores& scores, const Scores* exact, const Request& request) {
  const auto row = [](const std::string& name, const Score& score) {
    std::cout << absl::StrFormat("%-18s %5.1f %% of the digits, %u of %u numbers whole\n", name,
                                 100 * score.accuracy(), score.samples_right, score.samples);
  };
  std::cout << request.n_texts << " texts of " << count_text(request.length) << " tokens\n";
  row("profile", scores.all);
  for (size_t i = 0; i < kDepths; ++i) {
    row(absl::StrFormat("  depth %u-%u %%", i * 100 / kDepths, (i + 1) * 100 / kDepths),
        scores.by_depth[i]);
  }
  if (exact != nullptr) row("exact attention", exact->all);
}

}  // namespace

int eval_recall(const Arguments& arguments) {
  CommandLine line("varve eval recall --length N [option]...",
                   "Hides numbers of seven digits in real texts, asks for each, and tells how many "
                   "digits come back right:\n"
                   "with the profile's stack, and with exact attention over uncompressed memory.");
  line.add()("length", po::value<uint64_t>()->default_value(8192)->value_name("N"),
             "tokens of each text, questions included")(
      "needles", po::value<uint64_t>()->default_value(50)->value_name("K"),
      "numbers to ask for, five in each text")(
      "text", po::value<std::vector<std::string>>()->value_name("FILE")->composing(),
      "text to hide them in; repeatable (default: the document of tools/setup, licences, manuals)")(
      "no-exact", "leave exact attention out: it takes long on long texts")(
      "fresh", "read the text anew for each question, five times the work");
  if (const std::optional<int> done = line.parse(arguments)) return *done;
  const auto n_needles = line.get<uint64_t>("needles");
  if (n_needles < 1 || n_needles > 10000)
    return line.usage_error("expected --needles from 1 to 10000");
  const Request request{line.get<uint64_t>("length"),
                        (n_needles + kNeedlesPerText - 1) / kNeedlesPerText, line.has("fresh"),
                        line.list("text")};
  const absl::StatusOr<Profile> profile = line.profile();
  if (!profile.ok()) return report(profile.status(), kExitUsage);
  const absl::StatusOr<Scores> scores = measure(*profile, request, "profile");
  if (!scores.ok()) return report(scores.status(), kExitFailure);
  std::optional<Scores> exact;
  if (!line.has("no-exact")) {
    const absl::StatusOr<Profile> exact_with = exact_profile(line.profile_sources());
    if (!exact_with.ok()) return report(exact_with.status(), kExitUsage);
    const absl::StatusOr<Scores> found = measure(*exact_with, request, "exact");
    if (!found.ok()) return report(found.status(), kExitFailure);
    exact = *found;
  }
  const Scores* exact_or_null = exact ? &*exact : nullptr;
  if (line.json()) {
    print_json(*scores, exact_or_null, request);
  } else {
    print_text(*scores, exact_or_null, request);
  }
  return kExitOk;
}

}  // namespace varve::cli
