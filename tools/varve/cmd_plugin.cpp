// varve plugin: what can be loaded, and what it can be told; checking and making plugins.
#include "tools/varve/cmd_plugin.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/base/text.h"
#include "core/plugin/library.h"
#include "tools/varve/chosen_plugins.h"
#include "tools/varve/command.h"
#include "tools/varve/plugin_new.h"

namespace varve::cli {
namespace {

nlohmann::ordered_json value_json(const Value& value) {
  return std::visit([](const auto& v) { return nlohmann::ordered_json(v); }, value);
}

nlohmann::ordered_json info_json(const PluginInfo& info) {
  nlohmann::ordered_json params = nlohmann::ordered_json::array();
  for (const KeySpec& spec : info.params) {
    params.push_back({{"key", spec.key},
                      {"help", spec.help},
                      {"default", value_json(spec.default_value)},
                      {"expected", spec.expectation()},
                      {"environment", environment_name(info.kind, spec.key)}});
  }
  return {{"kind", info.kind},
          {"name", info.name},
          {"id", info.id},
          {"version", info.version},
          {"mri_min", version_text(info.versions.min)},
          {"mri_max", version_text(info.versions.max)},
          {"mri_used", version_text(info.negotiated)},
          {"build", info.build},
          {"path", info.path},
          {"sha256", info.sha256},
          {"params", std::move(params)}};
}

void print_info(const PluginInfo& info) {
  std::cout << absl::StrFormat(
      "%s %s\n  id       %s %s\n  MRI      %s to %s, used here: %s\n  build    %s\n  path     %s\n "
      " "
      "sha256   %s\n",
      info.kind, info.name, info.id, info.version, version_text(info.versions.min),
      version_text(info.versions.max), version_text(info.negotiated), info.build, info.path,
      info.sha256);
  if (info.params.empty()) std::cout << "  no parameters\n";
  for (const KeySpec& spec : info.params) {
    std::cout << absl::StrFormat("\n  %s.%s = %s\n    %s\n    %s; %s\n", info.kind, spec.key,
                                 to_text(spec.default_value), spec.help, spec.expectation(),
                                 environment_name(info.kind, spec.key));
  }
}

int list(const CommandLine& line, const Profile& profile,
         const std::vector<std::string>& directories) {
  const auto trust = [&](std::string_view kind) { return trust_of(profile, kind); };
  const std::vector<ListedPlugin> plugins = list_plugins(directories, trust);
  if (plugins.empty()) {
    return report(
        absl::NotFoundError(absl::StrCat("found no plugin in ", absl::StrJoin(directories, ", "),
                                         "; expected <kind>-<name>.so there: see "
                                         "plugins.directories")),
        kExitFailure);
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const ListedPlugin& plugin : plugins) {
    if (line.json()) {
      json.push_back(
          plugin.info.ok()
              ? info_json(*plugin.info)
              : nlohmann::ordered_json{{"path", plugin.path},
                                       {"refused", std::string(plugin.info.status().message())}});
    } else if (plugin.info.ok()) {
      std::cout << absl::StrFormat("%-10s %-12s %-8s MRI %s  %s\n", plugin.info->kind,
                                   plugin.info->name, plugin.info->version,
                                   version_text(plugin.info->negotiated), plugin.path);
    } else {
      std::cout << "refused    " << plugin.path << "\n           " << plugin.info.status().message()
                << "\n";
    }
  }
  if (line.json())
    std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  return kExitOk;
}

int info(const CommandLine& line, const Profile& profile,
         const std::vector<std::string>& directories, const std::string& wanted) {
  const size_t split = wanted.find_first_of("-/");
  if (split == std::string::npos || split == 0) {
    return line.usage_error(absl::StrCat("found ", varve::quoted(wanted),
                                         "; expected <kind>/<name>, for example quantizer/int8"));
  }
  const std::string kind = wanted.substr(0, split);
  if (const absl::Status status = check_kind(kind); !status.ok()) return report(status, kExitUsage);
  const absl::StatusOr<Trust> trust = trust_of(profile, kind);
  if (!trust.ok()) return report(trust.status(), kExitUsage);
  const absl::StatusOr<PluginLibrary> plugin =
      load_plugin(directories, kind, wanted.substr(split + 1), {}, *trust);
  if (!plugin.ok()) return report(plugin.status(), kExitUsage);
  if (line.json()) {
    std::cout
        << info_json(plugin->info).dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
        << "\n";
  } else {
    print_info(plugin->info);
  }
  return kExitOk;
}

}  // namespace

int cmd_plugin(const Arguments& arguments) {
  CommandLine line(
      "varve plugin list | info <kind>/<name> | check <file>... | new <kind> <name> |\n"
      "             sign <key> <file> | verify <file>...",
      "list   the plugins of the folders in [plugins] directories (default: ../lib/varve beside "
      "the program)\n"
      "info   the versions, the build and every parameter of one; nothing of it is started\n"
      "check  what a host would dislike in a file, without loading it: each finding with its rule "
      "(mri/README.md)\n"
      "       and what mends it. Exit code 1 when there is an error\n"
      "new    a folder to start a plugin from, with code that works and a test. Kinds: runtime, "
      "kv_tier,\n"
      "       quantizer, attention, summary, batching\n"
      "sign   <file>.sig, by the private key in a PEM file (openssl genpkey -algorithm ed25519), "
      "and the line for\n"
      "       [plugins] that names its public key\n"
      "verify whether the profile trusts a file: its place, pins and signature; nothing of it is "
      "loaded");
  line.add()("directory", boost::program_options::value<std::string>()->value_name("FOLDER"),
             "new: the folder to make (default: <kind>-<name>)")("strict",
                                                                 "check: warnings are errors");
  line.positional("list, info, check, new, sign or verify", 1000);
  if (const std::optional<int> done = line.parse(arguments)) return *done;
  const std::vector<std::string> words = line.list("positional");
  const std::string word = words.empty() ? "" : words.front();
  if (word == "new") return plugin_new(line, words);
  if (word == "check") return plugin_check(line, words);
  if (word == "sign") return plugin_sign(line, words);
  if (word == "verify") return plugin_verify(line, words);
  const bool is_list = word == "list";
  if (!is_list && word != "info")
    return line.unknown_word(word, {"list", "info", "check", "new", "sign", "verify"});
  if (is_list && words.size() > 1)
    return line.usage_error(absl::StrCat("found ", varve::quoted(words[1]), " too many"));
  if (!is_list && words.size() != 2)
    return line.usage_error("expected 'info' and one plugin, for example quantizer/int8");
  const absl::StatusOr<Profile> profile = line.profile();
  if (!profile.ok()) return report(profile.status(), kExitUsage);
  const absl::StatusOr<std::vector<std::string>> directories = plugin_directories(*profile);
  if (!directories.ok()) return report(directories.status(), kExitUsage);
  return is_list ? list(line, *profile, *directories)
                 : info(line, *profile, *directories, words[1]);
}

}  // namespace varve::cli
