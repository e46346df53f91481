// The subcommands of `varve plugin` that have files of their own. `words`: the arguments without a
// dash, the subcommand first.
#pragma once

#include <string>
#include <vector>

#include "tools/varve/command.h"

namespace varve::cli {

int plugin_new(const CommandLine& line, const std::vector<std::string>& words);
int plugin_check(const CommandLine& line, const std::vector<std::string>& words);
int plugin_sign(const CommandLine& line, const std::vector<std::string>& words);
int plugin_verify(const CommandLine& line, const std::vector<std::string>& words);

}  // namespace varve::cli
