// varve plugin check: what a host would dislike in a plugin's file, before it is loaded.
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/base/file.h"
#include "core/base/limits.h"
#include "core/base/sha256.h"
#include "tools/varve/cmd_plugin.h"
#include "tools/varve/plugin_check.h"
#include "tools/varve/system_libraries.h"

namespace varve::cli {
namespace {

nlohmann::ordered_json check_json(const std::string& path, const PluginCheck& check,
                                  const std::string& sha256) {
  nlohmann::ordered_json findings = nlohmann::ordered_json::array();
  for (const Finding& finding : check.findings) {
    findings.push_back({{"rule", finding.rule},
                        {"severity", severity_text(finding.severity)},
                        {"found", finding.found},
                        {"fix", finding.fix}});
  }
  return {{"file", path},
          {"kind", check.kind},
          {"id", check.id},
          {"version", check.version},
          {"build", check.build},
          {"build_id", check.build_id},
          {"sha256", sha256},
          {"needs", check.needs},
          {"errors", check.count(Severity::kError)},
          {"warnings", check.count(Severity::kWarning)},
          {"findings", std::move(findings)}};
}

void print_check(const std::string& path, const PluginCheck& check, const std::string& sha256) {
  std::cout << path << "\n  sha256 " << sha256 << "\n";
  if (!check.id.empty()) {
    std::cout << absl::StrFormat("  %s %s %s, %s\n", check.kind, check.id, check.version,
                                 check.build);
  }
  if (!check.build_id.empty()) std::cout << "  build id " << check.build_id << "\n";
  if (!check.needs.empty()) {
    std::cout << "  needs " << absl::StrJoin(check.needs, ", ") << " or newer\n";
  }
  for (const Finding& finding : check.findings) {
    std::cout << absl::StrFormat("  %s %s: %s\n           fix: %s\n", finding.rule,
                                 severity_text(finding.severity), finding.found, finding.fix);
  }
  std::cout << absl::StrFormat("  %d errors, %d warnings\n", check.count(Severity::kError),
                               check.count(Severity::kWarning));
}

}  // namespace

int plugin_check(const CommandLine& line, const std::vector<std::string>& words) {
  if (words.size() < 2) return line.usage_error("expected 'check' and a plugin's file");
  SystemLibraries system;
  const SystemLacks lacks = [&](const std::string& library, const std::string& version) {
    return system.lacks(library, version);
  };
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  bool is_bad = false;
  for (size_t i = 1; i < words.size(); ++i) {
    const absl::StatusOr<std::string> bytes = read_file(words[i], kPluginFileBytesMax);
    if (!bytes.ok()) {
      return report(absl::NotFoundError(absl::StrCat(words[i], ": found ", bytes.status().message(),
                                                     "; expected a plugin's .so")),
                    kExitUsage);
    }
    const PluginCheck check = check_plugin(words[i], *bytes, lacks);
    is_bad = is_bad || check.count(Severity::kError) > 0 ||
             (line.has("strict") && check.count(Severity::kWarning) > 0);
    if (line.json()) {
      json.push_back(check_json(words[i], check, sha256_hex(*bytes)));
    } else {
      print_check(words[i], check, sha256_hex(*bytes));
    }
  }
  if (line.json()) {
    std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  }
  return is_bad ? kExitFailure : kExitOk;
}

}  // namespace varve::cli
