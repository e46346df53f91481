// What mri-conform found, and the forms in which it tells.
#pragma once

#include <string>
#include <vector>

#include "mri/conformance/suite.h"
#include "tools/mri_conform/child.h"

namespace varve::conform {

enum class Status { kPass, kWarn, kNotSupported, kFail, kCrash, kTimeout };
// "PASS", "NOT_SUPPORTED".
const char* status_text(Status status);
// FAIL, CRASH and TIMEOUT.
bool is_bad(Status status);

struct TestOutcome {
  const mri::conformance::Test* test = nullptr;
  Status status = Status::kPass;
  std::string why;  // of a crash or time-out
  std::vector<Finding> findings;
  std::string output;  // the end of what a failed test printed
  double seconds = 0;
};

// All tests at one version of the host.
struct Run {
  uint32_t version = 0;
  uint64_t seed = 1;
  // Not empty: the plugin speaks no version of such a host, which is its right; no test has run.
  std::string not_spoken;
  std::vector<TestOutcome> tests;
};

// Facts of the plugin, as it states them; empty where it does not tell.
struct Subject {
  std::string path;    // or the URL
  std::string sha256;  // "" by URL
  std::string kind, id, version, build, mri_min, mri_max;
};

struct Outcome {
  Subject subject;
  std::string suite_version, suite_sha256;
  std::vector<Run> runs;

  // Nothing bad, and at least one version was tested.
  bool is_passed() const;
};

// What became of one test.
TestOutcome judged(const mri::conformance::Test& test, const Ended& ended);

// For people: one line a test, and what to do about each that is bad.
std::string to_text(const Outcome& outcome);
std::string to_json(const Outcome& outcome);
std::string to_junit(const Outcome& outcome);

// The documentation of all tests, as a page.
std::string tests_page();
// The must-pass list of a version: an id a line.
std::string must_pass_list(uint32_t version);

// "1.1".
std::string version_name(uint32_t version);

}  // namespace varve::conform
