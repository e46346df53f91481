#include "tools/mri_conform/outcome.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "core/base/text.h"

namespace varve::conform {
namespace {

using mri::conformance::all_tests;
using mri::conformance::must_pass;
using mri::conformance::Test;

constexpr size_t kTextBytesMax = 4096;

const char* finding_text(Report::What what) {
  switch (what) {
    case Report::What::kFail:
      return "fail";
    case Report::What::kWarn:
      return "warning";
    case Report::What::kNote:
      return "note";
    case Report::What::kNotSupported:
      return "not supported";
  }
  return "";
}

std::map<Status, size_t> counts(const Run& run) {
  std::map<Status, size_t> n;
  for (const TestOutcome& test : run.tests) ++n[test.status];
  return n;
}

std::string counts_text(const Run& run) {
  std::string text;
  for (const auto& [status, n] : counts(run)) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", n, " ", status_text(status));
  }
  return text.empty() ? "no tests" : text;
}

std::string xml(const std::string& text) {
  return absl::StrReplaceAll(clean_text(text, kTextBytesMax),
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// What the host refuses fails nearly every test; the reason and what helps stand in load.host.
bool is_told_by_load_host(const TestOutcome& test, const Run& run) {
  if (test.findings.empty() || !absl::StartsWith(test.findings.front().text, "not loaded: "))
    return false;
  return std::any_of(run.tests.begin(), run.tests.end(), [](const TestOutcome& other) {
    return std::string_view(other.test->id) == "load.host" && is_bad(other.status);
  });
}

void append_test(const TestOutcome& test, const Run& run, std::string* text) {
  absl::StrAppendFormat(text, "  %-13s %-28s %s\n", status_text(test.status), test.test->id,
                        test.test->summary);
  if (is_told_by_load_host(test, run)) {
    absl::StrAppend(text, "      not loaded: see load.host\n");
    return;
  }
  if (!test.why.empty()) absl::StrAppend(text, "      ", test.why, "\n");
  for (const Finding& finding : test.findings) {
    absl::StrAppend(text, "      ", finding_text(finding.what), ": ",
                    clean_text(finding.text, kTextBytesMax), "\n");
  }
  if (!is_bad(test.status)) return;
  if (!test.output.empty()) {
    absl::StrAppend(text, "      it printed: ", clean_text(test.output, kTextBytesMax), "\n");
  }
  absl::StrAppend(text, "      what to do: ", test.test->advice, "\n      again: --mri ",
                  version_name(run.version), " --reproduce ", test.test->id, ":", run.seed, "\n");
}

}  // namespace

const char* status_text(Status status) {
  switch (status) {
    case Status::kPass:
      return "PASS";
    case Status::kWarn:
      return "WARN";
    case Status::kNotSupported:
      return "NOT_SUPPORTED";
    case Status::kFail:
      return "FAIL";
    case Status::kCrash:
      return "CRASH";
    case Status::kTimeout:
      return "TIMEOUT";
  }
  return "";
}

bool is_bad(Status status) { return status >= Status::kFail; }

bool Outcome::is_passed() const {
  bool any = false;
  for (const Run& run : runs) {
    any = any || !run.tests.empty();
    for (const TestOutcome& test : run.tests) {
      if (is_bad(test.status)) return false;
    }
  }
  return any;
}

TestOutcome judged(const Test& test, const Ended& ended) {
  TestOutcome outcome{&test, Status::kPass, ended.why, ended.findings, ended.output, ended.seconds};
  const auto has = [&](Report::What what) {
    return std::any_of(ended.findings.begin(), ended.findings.end(),
                       [what](const Finding& finding) { return finding.what == what; });
  };
  if (has(Report::What::kNotSupported)) outcome.status = Status::kNotSupported;
  if (has(Report::What::kWarn)) outcome.status = Status::kWarn;
  if (has(Report::What::kFail)) outcome.status = Status::kFail;
  if (ended.how == Ended::How::kCrash) outcome.status = Status::kCrash;
  if (ended.how == Ended::How::kTimeout) outcome.status = Status::kTimeout;
  return outcome;
}

std::string version_name(uint32_t version) {
  return absl::StrCat(version >> 16u, ".", version & 0xffffu);
}

std::string to_text(const Outcome& outcome) {
  const Subject& subject = outcome.subject;
  std::string text = absl::StrCat(subject.path, "\n");
  if (!subject.id.empty()) {
    absl::StrAppend(&text, "  ", subject.kind, " ", subject.id, " ", subject.version, ", MRI ",
                    subject.mri_min, " to ", subject.mri_max, ", ", subject.build, "\n");
  }
  for (const Run& run : outcome.runs) {
    absl::StrAppend(&text, "\nhost of MRI ", version_name(run.version), "\n");
    if (!run.not_spoken.empty()) absl::StrAppend(&text, "  not spoken: ", run.not_spoken, "\n");
    for (const TestOutcome& test : run.tests) append_test(test, run, &text);
    absl::StrAppend(&text, "  ", counts_text(run), "\n");
  }
  absl::StrAppend(&text, "\n", outcome.is_passed() ? "passed" : "NOT passed", "\n");
  return text;
}

std::string to_json(const Outcome& outcome) {
  using Json = nlohmann::ordered_json;
  const Subject& subject = outcome.subject;
  Json runs = Json::array();
  for (const Run& run : outcome.runs) {
    Json tests = Json::array();
    for (const TestOutcome& test : run.tests) {
      Json findings = Json::array();
      for (const Finding& finding : test.findings) {
        findings.push_back({{"what", finding_text(finding.what)},
                            {"text", clean_text(finding.text, kTextBytesMax)}});
      }
      Json one = {{"id", test.test->id},
                  {"level", test.test->level},
                  {"status", status_text(test.status)},
                  {"must_pass", must_pass(*test.test, run.version)},
                  {"seconds", test.seconds},
                  {"findings", std::move(findings)}};
      if (!test.why.empty()) one["why"] = test.why;
      if (is_bad(test.status)) one["what_to_do"] = test.test->advice;
      tests.push_back(std::move(one));
    }
    Json summary = Json::object();
    for (const auto& [status, n] : counts(run)) summary[status_text(status)] = n;
    Json one = {{"mri", version_name(run.version)}, {"seed", run.seed}, {"summary", summary}};
    if (!run.not_spoken.empty()) one["not_spoken"] = run.not_spoken;
    one["tests"] = std::move(tests);
    runs.push_back(std::move(one));
  }
  const Json all = {
      {"suite", {{"version", outcome.suite_version}, {"sha256", outcome.suite_sha256}}},
      {"plugin",
       {{"path", subject.path},
        {"sha256", subject.sha256},
        {"kind", subject.kind},
        {"id", subject.id},
        {"version", subject.version},
        {"build", subject.build},
        {"mri_min", subject.mri_min},
        {"mri_max", subject.mri_max}}},
      {"passed", outcome.is_passed()},
      {"runs", std::move(runs)}};
  return all.dump(2) + "\n";
}

std::string to_junit(const Outcome& outcome) {
  std::string text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n";
  for (const Run& run : outcome.runs) {
    const std::string name =
        absl::StrCat(outcome.subject.id.empty() ? outcome.subject.path : outcome.subject.id,
                     " at MRI ", version_name(run.version));
    size_t bad = 0, skipped = 0;
    for (const TestOutcome& test : run.tests) {
      bad += is_bad(test.status) ? 1 : 0;
      skipped += test.status == Status::kNotSupported ? 1 : 0;
    }
    absl::StrAppend(&text, " <testsuite name=\"", xml(name), "\" tests=\"", run.tests.size(),
                    "\" failures=\"", bad, "\" skipped=\"", skipped, "\">\n");
    for (const TestOutcome& test : run.tests) {
      absl::StrAppendFormat(&text, "  <testcase classname=\"%s\" name=\"%s\" time=\"%.3f\"",
                            xml(name), xml(test.test->id), test.seconds);
      std::string body = test.why;
      for (const Finding& finding : test.findings) {
        absl::StrAppend(&body, body.empty() ? "" : "\n", finding_text(finding.what), ": ",
                        finding.text);
      }
      if (is_bad(test.status)) {
        absl::StrAppend(&text, "><failure type=\"", status_text(test.status), "\" message=\"",
                        xml(test.test->summary), "\">", xml(body), "</failure></testcase>\n");
      } else if (test.status == Status::kNotSupported) {
        absl::StrAppend(&text, "><skipped message=\"", xml(body), "\"/></testcase>\n");
      } else {
        absl::StrAppend(&text, "/>\n");
      }
    }
    absl::StrAppend(&text, " </testsuite>\n");
  }
  return text + "</testsuites>\n";
}

std::string must_pass_list(uint32_t version) {
  std::vector<std::string> ids;
  for (const Test& test : all_tests()) {
    if (must_pass(test, version)) ids.emplace_back(test.id);
  }
  std::sort(ids.begin(), ids.end());
  std::string text;
  for (const std::string& id : ids) absl::StrAppend(&text, id, "\n");
  return text;
}

std::string tests_page() {
  std::string text =
      "<!-- Made by `mri-conform --list --markdown`; a test compares it. -->\n\n"
      "| test | level | since | holds when |\n|---|---|---|---|\n";
  for (const Test& test : all_tests()) {
    absl::StrAppend(&text, "| `", test.id, "` | ", test.level, " | ", version_name(test.since),
                    " | ", test.summary, test.advice[0] == '\0' ? "" : " *Else:* ", test.advice,
                    test.by_url ? " (also by URL)" : "", " |\n");
  }
  return text;
}

}  // namespace varve::conform
