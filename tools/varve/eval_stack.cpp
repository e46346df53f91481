#include "tools/varve/eval_stack.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/engine/mri_status.h"

namespace varve::cli {

absl::StatusOr<Profile> variant_profile(ProfileSources sources,
                                        const std::vector<std::string>& tables,
                                        const Settings& settings) {
  std::erase_if(sources.overrides, [&](const std::string& assignment) {
    return std::find(tables.begin(), tables.end(), assignment.substr(0, assignment.find('.'))) !=
           tables.end();
  });
  sources.overrides.insert(sources.overrides.end(), settings.begin(), settings.end());
  return Profile::load(sources);
}

absl::StatusOr<Profile> exact_profile(const ProfileSources& sources) {
  static constexpr std::pair<const char*, const char*> kExact[] = {
      {"kv_tier", "full"}, {"quantizer", "bf16"}, {"attention", "dense"}, {"summary", "none"}};
  const absl::StatusOr<Profile> own = Profile::load(sources);
  if (!own.ok()) return own.status();
  std::vector<std::string> tables;
  Settings settings;
  for (const auto& [table, plugin] : kExact) {
    // A runtime that does without such a plugin goes on without it.
    if (own->text(table, "plugin") == "none") continue;
    tables.emplace_back(table);
    settings.push_back(absl::StrCat(table, ".plugin=", plugin));
  }
  return variant_profile(sources, tables, settings);
}

absl::StatusOr<Profile> peer_profile(const ProfileSources& sources, const std::string& model_path,
                                     const Settings& settings) {
  const absl::StatusOr<Profile> own = Profile::load(sources);
  if (!own.ok()) return own.status();
  Settings all = {"runtime.plugin=llama_cpp",
                  "kv_tier.plugin=none",
                  "quantizer.plugin=none",
                  "attention.plugin=none",
                  "summary.plugin=none",
                  absl::StrCat("model.path=", model_path),
                  absl::StrCat("runtime.threads=", own->integer("runtime", "threads"))};
  all.insert(all.end(), settings.begin(), settings.end());
  return variant_profile(sources, {"runtime", "kv_tier", "quantizer", "attention", "summary"}, all);
}

absl::Status append_all_logits(const mri::Peer<mri_runtime_v1>& runtime, const Session& session,
                               std::span<const int32_t> tokens, std::span<float> logits) {
  mri_step_seq seq{};
  seq.ctx = session.context();
  seq.tokens = tokens.data();
  seq.n_tokens = tokens.size();
  seq.logits = logits.data();
  seq.all_logits = 1;
  mri_step_req req{};
  req.hdr.struct_size = sizeof(req);
  req.seqs = &seq;
  req.n_seqs = 1;
  mri_step_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  mri_error error = empty_error();
  mri_status status = runtime.table->forward_step(runtime.self, &req, &rsp, &error);
  if (status == MRI_OK) status = seq.status;
  return status == MRI_OK ? absl::OkStatus() : to_status("forward_step", status, error);
}

}  // namespace varve::cli
