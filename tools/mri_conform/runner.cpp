#include "tools/mri_conform/runner.h"

#include <filesystem>
#include <fstream>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/limits.h"
#include "core/base/sha256.h"
#include "core/plugin/library.h"
#include "tools/mri_conform/official.h"
#include "tools/mri_conform/ref_kernels.h"
#include "tools/mri_conform/remote_runtime.h"
#include "tools/varve/plugin_check.h"
#include "tools/varve/system_libraries.h"

namespace varve::conform {
namespace {

using mri::conformance::all_tests;
using mri::conformance::Bench;
using mri::conformance::FileFinding;
using mri::conformance::Test;

// Values for activate; their texts live as long as this.
class Params {
 public:
  // `all` as the command line has them; the types are those of the plugin's table.
  Params(const std::vector<std::pair<std::string, std::string>>& all, const mri_plugin_entry* entry)
      : all_(all) {
    for (const auto& [key, value] : all_) {
      mri_param param{key.c_str(), nullptr, 0, 0, MRI_PARAM_STRING, 0};
      for (uint64_t i = 0; entry != nullptr && i < entry->n_params; ++i) {
        if (key == entry->params[i].key) param.type = entry->params[i].type;
      }
      bool truth = false;
      if (param.type == MRI_PARAM_STRING) param.string_value = value.c_str();
      if (param.type == MRI_PARAM_INT && !absl::SimpleAtoi(value, &param.int_value)) continue;
      if (param.type == MRI_PARAM_FLOAT && !absl::SimpleAtod(value, &param.float_value)) continue;
      if (param.type == MRI_PARAM_BOOL && !absl::SimpleAtob(value, &truth)) continue;
      if (param.type == MRI_PARAM_BOOL) param.int_value = truth ? 1 : 0;
      values_.push_back(param);
    }
  }
  const std::vector<mri_param>& values() const { return values_; }

 private:
  std::vector<std::pair<std::string, std::string>> all_;
  std::vector<mri_param> values_;
};

std::vector<FileFinding> file_findings(const std::string& path, const std::string& bytes) {
  std::vector<FileFinding> findings;
  cli::SystemLibraries system;
  const cli::PluginCheck check =
      cli::check_plugin(path, bytes, [&](const std::string& library, const std::string& version) {
        return system.lacks(library, version);
      });
  for (const cli::Finding& finding : check.findings) {
    const Report::What what = finding.severity == cli::Severity::kError     ? Report::What::kFail
                              : finding.severity == cli::Severity::kWarning ? Report::What::kWarn
                                                                            : Report::What::kNote;
    findings.push_back({what, absl::StrCat(finding.rule, " ", finding.found, "; ", finding.fix)});
  }
  return findings;
}

// In a child: what the plugin says of itself, or why a host refuses it.
void probe(const std::string& path, const std::string& kind, uint32_t version,
           const Parent& parent) {
  const absl::StatusOr<PluginLibrary> library = PluginLibrary::load(path, kind, {MRI_1_0, version});
  if (!library.ok()) {
    parent.answer(std::string(library.status().message()));
    return;
  }
  const PluginInfo& info = library->info;
  for (const std::string& word : {info.kind, info.id, info.version, info.build,
                                  version_name(info.versions.min), version_name(info.versions.max)})
    parent.answer(word);
}

void run_in_bench(const Test& test, const Options& options, const std::string& kind,
                  uint32_t version, const std::vector<FileFinding>& file, const Parent& parent) {
  static Report report(parent.finding);  // outlives the plugin, whose end may be reported too
  Bench bench;
  bench.report = &report;
  bench.version = version;
  bench.seed = options.seed;
  bench.kernels = &ref_kernels();
  if (options.is_url()) {
    RemoteRuntime server(options.target, options.key, version);
    bench.server = &server;
    mri::conformance::run_test(test, bench);
    return;
  }
  bench.file = file;
  bench.threads = mri::conformance::threads_now();
  if (test.level > 0) {
    const absl::StatusOr<PluginLibrary> library =
        PluginLibrary::load(options.target, kind, {MRI_1_0, version});
    if (library.ok()) bench.entry = library->entry;
    if (library.ok()) bench.version = library->info.negotiated;
    if (!library.ok()) bench.refusal = std::string(library.status().message());
  }
  const Params params(options.params, bench.entry);
  bench.params = params.values();
  mri::conformance::run_test(test, bench);
}

bool is_for(const Test& test, const Options& options, const std::string& kind, uint32_t version) {
  if (!options.only.empty()) return test.id == options.only;
  if (test.level > options.level_max || test.since > version) return false;
  const std::string wanted = test.kind;
  if (options.is_url()) return test.by_url || wanted == "url";
  return wanted == "any" || wanted == kind;
}

void tell(const TestOutcome& test, uint32_t version) {
  std::cerr << "MRI " << version_name(version) << "  " << status_text(test.status) << "  "
            << test.test->id << std::endl;
}

Run run_version(const Options& options, uint32_t version, const std::vector<FileFinding>& file,
                Subject* subject) {
  Run run;
  run.version = version;
  run.seed = options.seed;
  std::string kind = options.kind;
  if (!options.is_url()) {
    const Ended probed = run_in_child(options.timeout_s, [&](const Parent& parent) {
      probe(options.target, options.kind, version, parent);
    });
    if (probed.answers.size() == 6) {
      const std::vector<std::string>& said = probed.answers;
      *subject = {subject->path, subject->sha256, said[0], said[1],
                  said[2],       said[3],         said[4], said[5]};
      kind = said[0];
    } else if (probed.answers.size() == 1 && absl::StrContains(probed.answers[0], "MRI-E012")) {
      run.not_spoken = probed.answers[0];
      return run;
    }
  }
  for (const Test& test : all_tests()) {
    if (!is_for(test, options, kind, version)) continue;
    const Ended ended = run_in_child(options.timeout_s, [&](const Parent& parent) {
      run_in_bench(test, options, options.kind, version, file, parent);
    });
    run.tests.push_back(judged(test, ended));
    if (!options.quiet) tell(run.tests.back(), version);
  }
  return run;
}

}  // namespace

absl::StatusOr<Outcome> run(const Options& options) {
  Outcome outcome;
  outcome.suite_version = version_name(MRI_HEADER_VERSION);
  Options checked = options;
  std::vector<FileFinding> file;
  if (!options.is_url()) {
    std::error_code error;
    checked.target = std::filesystem::absolute(options.target, error).string();
    const absl::StatusOr<std::string> bytes = read_whole_file(checked.target);
    if (!bytes.ok()) return bytes.status();
    outcome.subject.sha256 = sha256_hex(*bytes);
    file = file_findings(checked.target, *bytes);
  }
  outcome.subject.path = checked.target;
  const absl::StatusOr<std::string> self = read_whole_file("/proc/self/exe");
  if (self.ok()) outcome.suite_sha256 = sha256_hex(*self);
  bool is_known = options.only.empty();
  for (const Test& test : all_tests()) is_known = is_known || test.id == options.only;
  if (!is_known) {
    return absl::NotFoundError(
        absl::StrCat("found the test \"", options.only, "\"; expected one of mri-conform --list"));
  }
  for (const uint32_t version : options.versions) {
    outcome.runs.push_back(run_version(checked, version, file, &outcome.subject));
  }
  return outcome;
}

}  // namespace varve::conform
