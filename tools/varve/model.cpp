#include "tools/varve/model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/log.h"
#include "core/config/options.h"

namespace varve::cli {

absl::StatusOr<std::unique_ptr<Stack>> load_chosen_stack(std::vector<ChosenPlugin> plugins,
                                                         ThreadPool& threads, LogSink log) {
  StackSpec spec;
  spec.services.threads = &threads;
  spec.services.log = std::move(log);
  for (ChosenPlugin& plugin : plugins) {
    PluginChoice choice{plugin.table,
                        plugin.library.info.path,
                        {},
                        std::move(plugin.isolation),
                        std::move(plugin.trust)};
    for (auto& [key, setting] : plugin.values)
      choice.params.emplace_back(key, std::move(setting.value));
    spec.plugins.push_back(std::move(choice));
  }
  return load_stack(spec);
}

absl::StatusOr<LoadedStack> load_profile_stack(const Profile& profile) {
  absl::StatusOr<std::vector<ChosenPlugin>> plugins = chosen_plugins(profile);
  if (!plugins.ok()) return plugins.status();
  auto threads = std::make_unique<ThreadPool>(runtime_options(profile).threads);
  absl::StatusOr<std::unique_ptr<Stack>> stack = load_chosen_stack(
      *std::move(plugins), *threads, stderr_log(LogLevel::kWarning, LogFormat::kText));
  if (!stack.ok()) return stack.status();
  const mri::Peer<mri_runtime_v1> runtime = (*stack)->runtime();
  return LoadedStack{std::move(threads), *std::move(stack), runtime};
}

absl::StatusOr<Model> load_model(const Profile& profile) {
  absl::StatusOr<LoadedStack> loaded = load_profile_stack(profile);
  if (!loaded.ok()) return loaded.status();
  const RuntimeOptions options = runtime_options(profile);
  const mri::Peer<mri_text_v1> text = loaded->stack->text();
  if (!text) {
    return absl::FailedPreconditionError(
        absl::StrCat(profile.find("runtime", "plugin")->where, ": the runtime ",
                     varve::quoted(profile.text("runtime", "plugin")),
                     " offers no " MRI_TEXT "; expected a vocabulary and chat template"));
  }
  const Text model_text(text.table, text.self);
  const absl::StatusOr<mri_model_info> info = model_text.model_info();
  if (!info.ok()) return info.status();
  const uint64_t wanted = options.max_tokens == 0 ? info->max_tokens : options.max_tokens;
  return Model{*std::move(loaded), model_text, *info, std::min(wanted, info->max_tokens)};
}

}  // namespace varve::cli
