// varve ask: documents and a question in, an answer and what its memory cost out.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/text.h"
#include "core/config/options.h"
#include "core/engine/session.h"
#include "tools/varve/command.h"
#include "tools/varve/model.h"
#include "tools/varve/progress.h"

namespace varve::cli {
namespace po = boost::program_options;
namespace {

constexpr uint64_t kDocumentBytesMax = uint64_t{1} << 30;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Everything that is measured while answering.
struct Outcome {
  Answer answer;
  std::string memory_map;
  uint64_t prompt_tokens = 0;
  double prefill_s = 0;  // reading the prompt, tokenisation not included
  double ttft_s = 0;     // from the start of tokenisation to the first token
  double decode_s = 0;   // from the first token to the last
  mri_kv_usage usage{};
};

absl::StatusOr<std::string> read_document(const std::string& path) {
  std::ifstream file;
  const bool is_stdin = path == "-";
  if (!is_stdin) file.open(path, std::ios::binary);
  std::istream& in = is_stdin ? std::cin : file;
  std::string text;
  char buffer[65536];
  while (in.read(buffer, sizeof(buffer)) || in.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(in.gcount()));
    if (text.size() > kDocumentBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": found more than ", bytes_text(kDocumentBytesMax), "; expected a text"));
    }
  }
  if (!in.eof()) {
    return absl::NotFoundError(absl::StrCat(path, ": found no readable file (",
                                            std::strerror(errno), "); expected a text"));
  }
  const size_t n_text = std::min(utf8_prefix(text), text.find('\0'));
  if (n_text < text.size()) {
    return absl::InvalidArgumentError(absl::StrCat(is_stdin ? "standard input" : path,
                                                   ": found no text at byte ", n_text,
                                                   "; expected UTF-8 without NUL"));
  }
  return text;
}

absl::StatusOr<std::vector<ChatMessage>> read_messages(const CommandLine& line,
                                                       const std::string& system_prompt) {
  std::vector<std::string> paths = line.list("file");
  if (paths.empty()) paths.emplace_back("-");
  std::string content;
  for (const std::string& path : paths) {
    absl::StatusOr<std::string> document = read_document(path);
    if (!document.ok()) return document.status();
    absl::StrAppend(&content, *document, "\n\n");
  }
  content += line.list("positional").front();
  std::vector<ChatMessage> messages;
  if (!system_prompt.empty()) messages.push_back({"system", system_prompt});
  messages.push_back({"user", std::move(content)});
  return messages;
}

absl::Status check_length(uint64_t n_tokens, const Model& model) {
  if (n_tokens < model.max_tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the documents and the question are ", count_text(n_tokens), " tokens; the limit is ",
      count_text(model.max_tokens),
      ", answer included (runtime.max_tokens or the model's). Nothing was cut: shorten the "
      "documents, or choose a profile or model that allows more"));
}

// One letter for each share of the text: h hot, w warm, c cold, - forgotten.
absl::StatusOr<std::string> memory_map(const Session& session) {
  constexpr uint64_t kColumns = 64;
  const absl::StatusOr<std::vector<mri_kv_block_info>> blocks = session.blocks();
  if (!blocks.ok()) return blocks.status();
  std::string map;
  const uint64_t n = blocks->size();
  for (uint64_t column = 0; column < std::min(kColumns, n); ++column) {
    const mri_kv_block_info& block = (*blocks)[column * n / std::min(kColumns, n)];
    map += block.n_tokens == 0 ? '-' : "hwc"[std::min<uint32_t>(block.tier, 2)];
  }
  return map;
}

absl::StatusOr<Outcome> answer(const CommandLine& line, const Profile& profile, const Model& model,
                               const std::vector<ChatMessage>& messages,
                               const std::atomic<uint32_t>& cancel) {
  const GenerateOptions generate_with = generate_options(profile);
  const RuntimeOptions runtime = runtime_options(profile);
  Outcome outcome;
  const auto start = std::chrono::steady_clock::now();
  const absl::StatusOr<std::vector<int32_t>> prompt = chat_tokens(model.text, messages);
  if (!prompt.ok()) return prompt.status();
  outcome.prompt_tokens = prompt->size();
  const absl::Status length = check_length(prompt->size(), model);
  if (!length.ok()) return length;

  const auto read_start = std::chrono::steady_clock::now();
  absl::StatusOr<std::unique_ptr<Session>> session = absl::UnknownError("not started");
  {
    Progress progress;
    const auto tell = [&](uint64_t done, uint64_t n) { progress.update(done, n); };
    session = model.start(*prompt, {runtime.prefill_chunk_tokens, runtime.kv_budget_bytes,
                                    model.max_tokens, generate_with.seed, tell, &cancel});
  }
  if (!session.ok()) return session.status();
  outcome.prefill_s = seconds_since(read_start);
  outcome.ttft_s = seconds_since(start);  // sampling the first token takes no time to speak of
  if (line.has("show-memory")) {
    absl::StatusOr<std::string> map = memory_map(**session);
    if (!map.ok()) return map.status();
    outcome.memory_map = *std::move(map);
  }

  SamplerOptions sampling;
  sampling.temperature = generate_with.temperature;
  sampling.top_p = generate_with.top_p;
  sampling.seed = generate_with.seed;
  const absl::StatusOr<std::unique_ptr<Sampler>> sampler = Sampler::make(sampling, *model.stack);
  if (!sampler.ok()) return sampler.status();
  const uint64_t max_tokens =
      std::min(line.has("max-tokens") ? line.get<uint64_t>("max-tokens") : generate_with.max_tokens,
               model.max_tokens - prompt->size());
  const auto write_start = std::chrono::steady_clock::now();
  absl::StatusOr<Answer> written =
      generate(**session, model.text, **sampler, max_tokens, [&](std::string_view text) {
        if (!line.json()) std::cout << text << std::flush;
      });
  if (!line.json()) std::cout << std::endl;
  if (!written.ok()) return written.status();
  outcome.decode_s = seconds_since(write_start);
  outcome.answer = *std::move(written);
  outcome.usage = (*session)->usage();
  return outcome;
}

double per_second(uint64_t n, double seconds) {
  return seconds > 0 ? static_cast<double>(n) / seconds : 0;
}

// Share of what plain bf16 takes: the tiers in memory, and `more` bytes.
double ratio_to_bf16(const mri_kv_usage& usage, uint64_t more) {
  const uint64_t bytes = usage.hot_bytes + usage.warm_bytes + usage.cold_bytes + more;
  return usage.bf16_bytes == 0 ? 0
                               : static_cast<double>(bytes) / static_cast<double>(usage.bf16_bytes);
}

void print_table(const Outcome& outcome) {
  const mri_kv_usage& usage = outcome.usage;
  std::string table = absl::StrFormat(
      "\nprompt   %s tokens, read in %.2f s (%.0f tokens/s)\n"
      "answer   %s tokens, the first after %.2f s, then %.1f tokens/s%s\n"
      "memory   hot %s (%s tokens), warm %s (%s), cold %s (%s), backing %s\n"
      "         %.0f %% of the %s that bf16 takes%s\n",
      count_text(outcome.prompt_tokens), outcome.prefill_s,
      per_second(outcome.prompt_tokens, outcome.prefill_s), count_text(outcome.answer.n_tokens),
      outcome.ttft_s, per_second(outcome.answer.n_tokens, outcome.decode_s),
      outcome.answer.finish == Finish::kLength ? "; stopped at the limit (generate.max_tokens)"
                                               : "",
      bytes_text(usage.hot_bytes), count_text(usage.hot_tokens), bytes_text(usage.warm_bytes),
      count_text(usage.warm_tokens), bytes_text(usage.cold_bytes), count_text(usage.cold_tokens),
      bytes_text(usage.backing_bytes), 100 * ratio_to_bf16(usage, 0), bytes_text(usage.bf16_bytes),
      usage.backing_bytes == 0 ? ""
                               : absl::StrFormat("; %.0f %% with the backing",
                                                 100 * ratio_to_bf16(usage, usage.backing_bytes)));
  if (!outcome.memory_map.empty()) {
    absl::StrAppend(&table, "map      ", outcome.memory_map,
                    "  after reading; h hot, w warm, c cold, - forgotten\n");
  }
  std::cerr << table;
}

void print_json(const CommandLine& line, const Model& model, const Outcome& outcome) {
  const mri_kv_usage& usage = outcome.usage;
  rusage self{};
  getrusage(RUSAGE_SELF, &self);
  nlohmann::ordered_json json = {
      {"answer", outcome.answer.text},
      {"finish", outcome.answer.finish == Finish::kEnd ? "end" : "length"},
      {"model", model.info.name},
      {"profile", line.profile_sources().path},
      {"prompt_tokens", outcome.prompt_tokens},
      {"answer_tokens", outcome.answer.n_tokens},
      {"ttft_s", outcome.ttft_s},
      {"prefill_s", outcome.prefill_s},
      {"prefill_tokens_per_s", per_second(outcome.prompt_tokens, outcome.prefill_s)},
      {"decode_tokens_per_s", per_second(outcome.answer.n_tokens, outcome.decode_s)},
      {"peak_rss_mb", static_cast<double>(self.ru_maxrss) / 1024},
      {"kv_bytes",
       {{"hot", usage.hot_bytes},
        {"warm", usage.warm_bytes},
        {"cold", usage.cold_bytes},
        {"backing", usage.backing_bytes},
        {"bf16_equivalent", usage.bf16_bytes}}},
      {"kv_tokens",
       {{"hot", usage.hot_tokens}, {"warm", usage.warm_tokens}, {"cold", usage.cold_tokens}}},
      {"kv_ratio_to_bf16", ratio_to_bf16(usage, 0)},
      {"kv_ratio_to_bf16_with_backing", ratio_to_bf16(usage, usage.backing_bytes)},
  };
  if (!outcome.memory_map.empty()) json["memory_map"] = outcome.memory_map;
  std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
}

}  // namespace

int cmd_ask(const Arguments& arguments) {
  CommandLine line(
      "varve ask [option]... \"question\"",
      "Puts documents and a question to a model and streams the answer to standard output. "
      "Progress and the\n"
      "final table go to standard error. Input that is too long is an error, never cut.");
  line.add()("file", po::value<std::vector<std::string>>()->value_name("FILE")->composing(),
             "a document, repeatable; '-', or none at all: standard input")(
      "max-tokens", po::value<uint64_t>()->value_name("N"),
      "longest answer (default: generate.max_tokens)")(
      "show-memory", "show which part of the text is hot, warm or cold after reading");
  line.positional("question", 1);
  if (const std::optional<int> done = line.parse(arguments)) return *done;
  if (line.list("positional").empty() || line.list("positional").front().empty())
    return line.usage_error("found no question; expected one as the last argument");
  if (line.list("file").empty() && isatty(STDIN_FILENO) == 1) {
    return line.usage_error("found no document; expected --file, or a text on standard input");
  }
  const absl::StatusOr<Profile> profile = line.profile();
  if (!profile.ok()) return report(profile.status(), kExitUsage);
  const absl::StatusOr<std::vector<ChatMessage>> messages =
      read_messages(line, generate_options(*profile).system_prompt);
  if (!messages.ok()) return report(messages.status(), kExitFailure);

  const std::atomic<uint32_t>& cancel = catch_interrupts();
  const absl::StatusOr<Model> model = load_model(*profile);
  if (!model.ok()) return report(model.status(), kExitUsage);
  const absl::StatusOr<Outcome> outcome = answer(line, *profile, *model, *messages, cancel);
  if (!outcome.ok()) return report(outcome.status(), kExitFailure);
  print_table(*outcome);
  if (line.json()) print_json(line, *model, *outcome);
  return kExitOk;
}

}  // namespace varve::cli
