// varve model: what was loaded.
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "tools/varve/command.h"
#include "tools/varve/model.h"

namespace varve::cli {
namespace {

nlohmann::ordered_json info_json(const Model& model) {
  const mri_model_info& info = model.info;
  return {{"name", info.name},
          {"architecture", info.architecture},
          {"parameters", info.parameters},
          {"weight_bytes", info.weight_bytes},
          {"vocab_size", info.vocab_size},
          {"trained_tokens", info.trained_tokens},
          {"max_tokens", model.max_tokens},
          {"n_layers", info.n_layers},
          {"n_heads", info.n_heads},
          {"n_kv_heads", info.n_kv_heads},
          {"head_dim", info.head_dim},
          {"n_embd", info.n_embd},
          {"n_ff", info.n_ff},
          {"kv_bytes_per_token_bf16", info.kv_bytes_per_token_bf16}};
}

void print_info(const Model& model) {
  const mri_model_info& info = model.info;
  std::cout << absl::StrFormat(
      "%s (%s)\n"
      "  parameters  %s, %s in memory\n"
      "  vocabulary  %s tokens\n"
      "  layers      %u, %u heads, %u KV heads of size %u, embedding %u, feed-forward %u\n"
      "  context     trained for %s tokens, at most %s here\n"
      "  KV          %s per token in bf16\n",
      info.name, info.architecture, count_text(info.parameters), bytes_text(info.weight_bytes),
      count_text(info.vocab_size), info.n_layers, info.n_heads, info.n_kv_heads, info.head_dim,
      info.n_embd, info.n_ff, count_text(info.trained_tokens), count_text(model.max_tokens),
      bytes_text(info.kv_bytes_per_token_bf16));
}

}  // namespace

int cmd_model(const Arguments& arguments) {
  CommandLine line("varve model info [option]...",
                   "Loads the model that the profile names and tells its shape and limits.");
  line.positional("info", 1);
  if (const std::optional<int> done = line.parse(arguments)) return *done;
  const std::vector<std::string> words = line.list("positional");
  const std::string word = words.empty() ? "" : words.front();
  if (word != "info") return line.unknown_word(word, {"info"});
  const absl::StatusOr<Profile> profile = line.profile();
  if (!profile.ok()) return report(profile.status(), kExitUsage);
  const absl::StatusOr<Model> model = load_model(*profile);
  if (!model.ok()) return report(model.status(), kExitUsage);
  if (line.json()) {
    std::cout << info_json(*model).dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
              << "\n";
  } else {
    print_info(*model);
  }
  return kExitOk;
}

}  // namespace varve::cli
