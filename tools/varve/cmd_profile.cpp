// varve profile: is it right, what is in effect, what can be written.
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/config/serve_config.h"
#include "core/route/api_keys.h"
#include "tools/varve/chosen_plugins.h"
#include "tools/varve/command.h"

namespace varve::cli {
namespace {

struct Row {
  std::string table, key;
  Value value;
  std::string where;
};

// Every value in effect: the host's keys, then those that belong to the plugin.
std::vector<Row> effective_rows(const Profile& profile, const std::vector<ChosenPlugin>& plugins) {
  std::vector<Row> rows;
  for (const TableSpec& table : profile_tables()) {
    for (const KeySpec& key : table.keys) {
      const Setting& setting = *profile.find(table.name, key.key);
      rows.push_back({table.name, key.key, setting.value, setting.where});
    }
    for (const ChosenPlugin& plugin : plugins) {
      if (plugin.table != table.name) continue;
      for (const auto& [key, setting] : plugin.values) {
        if (find_key(table.keys, key) == nullptr)
          rows.push_back({table.name, key, setting.value, setting.where});
      }
    }
  }
  for (const TableSpec& family : named_tables()) {
    for (const std::string& name : profile.names(family.name)) {
      const std::string table = absl::StrCat(family.name, ".", name);
      for (const KeySpec& key : family.keys) {
        const Setting& setting = *profile.find(table, key.key);
        rows.push_back({table, key.key, setting.value, setting.where});
      }
    }
  }
  return rows;
}

nlohmann::ordered_json value_json(const Value& value) {
  return std::visit([](const auto& v) { return nlohmann::ordered_json(v); }, value);
}

void show(const CommandLine& line, const std::vector<Row>& rows) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  std::string table;
  for (const Row& row : rows) {
    if (line.json()) {
      json[row.table][row.key] = {{"value", value_json(row.value)}, {"from", row.where}};
      continue;
    }
    if (row.table != table) std::cout << (table.empty() ? "[" : "\n[") << row.table << "]\n";
    table = row.table;
    std::cout << absl::StrFormat("%-40s # %s\n", absl::StrCat(row.key, " = ", to_text(row.value)),
                                 row.where);
  }
  if (line.json())
    std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

void print_key(const std::string& table, const KeySpec& spec) {
  std::cout << absl::StrFormat("%s.%s = %s\n    %s\n    %s; %s\n", table, spec.key,
                               to_text(spec.default_value), spec.help, spec.expectation(),
                               environment_name(table, spec.key));
}

void print_keys(const std::vector<ChosenPlugin>& plugins) {
  for (const TableSpec& table : profile_tables()) {
    std::cout << "[" << table.name << "]  " << table.help << "\n\n";
    for (const KeySpec& spec : table.keys) print_key(table.name, spec);
    for (const ChosenPlugin& plugin : plugins) {
      if (plugin.table != table.name) continue;
      for (const KeySpec& spec : plugin.library.info.params) {
        if (find_key(table.keys, spec.key) == nullptr) print_key(table.name, spec);
      }
    }
    std::cout << "\n";
  }
  for (const TableSpec& family : named_tables()) {
    std::cout << "[" << family.name << ".NAME]  " << family.help << "\n\n";
    for (const KeySpec& spec : family.keys) print_key(family.name + ".NAME", spec);
    std::cout << "\n";
  }
}

// The tables of `varve serve`, and the keys and the plugins of the other stacks that they name.
absl::Status check_serving(const Profile& profile, const ProfileSources& sources) {
  const absl::StatusOr<ServeConfig> config = load_serve_config(profile, sources);
  if (!config.ok()) return config.status();
  if (const auto keys = load_keys(*config); !keys.ok()) return keys.status();
  for (const StackConfig& stack : config->stacks) {
    const auto plugins = chosen_plugins(stack.profile);
    if (!plugins.ok()) return plugins.status();
  }
  return absl::OkStatus();
}

}  // namespace

int cmd_profile(const Arguments& arguments) {
  CommandLine line(
      "varve profile check | show | keys [FILE]",
      "check   every key, value and plugin of the profile; the first mistake with its place\n"
      "show    the values in effect and where each one comes from\n"
      "keys    what can be written, for the plugins that the profile names");
  line.positional("check, show or keys, and a profile", 2);
  if (const std::optional<int> done = line.parse(arguments)) return *done;
  const std::vector<std::string> words = line.list("positional");
  const std::string word = words.empty() ? "" : words.front();
  if (word != "check" && word != "show" && word != "keys")
    return line.unknown_word(word, {"check", "show", "keys"});
  ProfileSources sources = line.profile_sources();
  if (words.size() > 1) sources.path = words[1];
  const absl::StatusOr<Profile> profile = Profile::load(sources);
  if (!profile.ok()) return report(profile.status(), kExitUsage);
  const absl::StatusOr<std::vector<ChosenPlugin>> plugins = chosen_plugins(*profile);
  if (!plugins.ok()) return report(plugins.status(), kExitUsage);
  if (word == "show") show(line, effective_rows(*profile, *plugins));
  if (word == "keys") print_keys(*plugins);
  if (word == "check") {
    const absl::Status status = check_serving(*profile, sources);
    if (!status.ok()) return report(status, kExitUsage);
  }
  if (word == "check" && line.json()) std::cout << "{\"ok\": true}\n";
  if (word == "check" && !line.json()) std::cout << "ok\n";
  return kExitOk;
}

}  // namespace varve::cli
