// varve eval: a file cmd_eval_<name>.cpp for each measure.
#pragma once

#include <nlohmann/json.hpp>

#include "mri/kind/runtime.h"
#include "tools/varve/command.h"
#include "tools/varve/eval_stats.h"

namespace varve::cli {

int eval_parity(const Arguments& arguments);
int eval_kld(const Arguments& arguments);
int eval_recall(const Arguments& arguments);

// {"mean_kld":…, "p99_kld":…, "max_kld":…, "top1_agreement":…, "delta_nll":…}
nlohmann::ordered_json fidelity_json(const Fidelity& fidelity);
// {"hot":…, "warm":…, "cold":…, "backing":…, "bf16_equivalent":…, "ratio":…}: bytes, and what is in
// memory as a share of bf16_equivalent.
nlohmann::ordered_json kv_json(const mri_kv_usage& usage);
std::string fidelity_text(const Fidelity& fidelity);

}  // namespace varve::cli
