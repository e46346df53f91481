// The hosts of the table, and what each makes of a plugin, as one line of text: "ok 1.0, 3 answers"
// with what else is worth telling, "MRI-E...: ..." for a refusal, or "broken: ...".
#pragma once

#include <string>
#include <vector>

#include "core/plugin/library.h"

namespace varve::matrix {

// A program (kept_1_0/host_probe.c). `without`: interfaces that it does not offer.
std::string on_program(const std::string& program, const std::string& plugin,
                       const std::vector<std::string>& without = {});

// This tree's loader, stack and proxies. An answer to an eviction adds ", eviction unknown" or
// ", eviction done".
std::string on_core(const std::string& plugin, const std::string& kind, VersionRange host,
                    const std::vector<std::string>& without = {});

// The exit code of a command and all that it printed.
struct Ran {
  int code;
  std::string text;
};
Ran run(const std::string& command);

}  // namespace varve::matrix
