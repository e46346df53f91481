// varve eval: what an engine's shortcuts cost, against engines without them.
#include "tools/varve/cmd_eval.h"

#include <iostream>

#include "absl/strings/str_format.h"

namespace varve::cli {

nlohmann::ordered_json fidelity_json(const Fidelity& fidelity) {
  return {{"mean_kld", fidelity.mean_kld},
          {"p99_kld", fidelity.p99_kld},
          {"max_kld", fidelity.max_kld},
          {"top1_agreement", fidelity.top1_agreement},
          {"delta_nll", fidelity.delta_nll}};
}

nlohmann::ordered_json kv_json(const mri_kv_usage& usage) {
  const auto resident = static_cast<double>(usage.hot_bytes + usage.warm_bytes + usage.cold_bytes);
  return {{"hot", usage.hot_bytes},
          {"warm", usage.warm_bytes},
          {"cold", usage.cold_bytes},
          {"backing", usage.backing_bytes},
          {"bf16_equivalent", usage.bf16_bytes},
          {"ratio", usage.bf16_bytes == 0 ? 0 : resident / static_cast<double>(usage.bf16_bytes)}};
}

std::string fidelity_text(const Fidelity& fidelity) {
  return absl::StrFormat(
      "KLD %.3g mean, %.3g p99, %.3g most; same likeliest token %.2f %%; loss %+.4f",
      fidelity.mean_kld, fidelity.p99_kld, fidelity.max_kld, 100 * fidelity.top1_agreement,
      fidelity.delta_nll);
}

int cmd_eval(const Arguments& arguments) {
  const std::string what = arguments.empty() ? "" : arguments.front();
  const Arguments rest(arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end());
  if (what == "parity") return eval_parity(rest);
  if (what == "kld") return eval_kld(rest);
  if (what == "recall") return eval_recall(rest);
  CommandLine line("varve eval parity|kld|recall [option]...",
                   "parity  the stack's logits against libllama's on an f32 copy of the weights\n"
                   "kld     the stack's logits against those of exact attention, at a length\n"
                   "recall  how many digits of numbers hidden in a long text it finds again\n"
                   "\n'varve eval <measure> --help' tells the options of each.");
  line.positional("measure", 1);
  if (const std::optional<int> done = line.parse(arguments)) return *done;
  return line.unknown_word(what, {"parity", "kld", "recall"});
}

}  // namespace varve::cli
