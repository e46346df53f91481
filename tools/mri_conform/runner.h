// Which tests a plugin or a server gets, and their running.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/mri_conform/outcome.h"

namespace varve::conform {

struct Options {
  std::string target;  // FILE.so or http://…
  std::string kind;    // "": what the plugin says
  int level_max = 4;
  std::vector<uint32_t> versions;  // of the host
  uint64_t seed = 1;
  double timeout_s = 60;                                    // of a test
  std::string only;                                         // id of the one test to run
  std::vector<std::pair<std::string, std::string>> params;  // for activate
  std::string key;                                          // of a server
  bool quiet = false;                                       // no line on stderr for each test

  bool is_url() const { return target.rfind("http://", 0) == 0; }
};

// Runs all. An error is one of the command line: no such file, no such test.
absl::StatusOr<Outcome> run(const Options& options);

}  // namespace varve::conform
