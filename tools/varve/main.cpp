// The program: finds the command and runs it.
#include <cstring>
#include <exception>
#include <iostream>
#include <new>

#include "core/base/text.h"
#include "core/config/nearest_name.h"
#include "mri/version.h"
#include "tools/varve/command.h"

namespace varve::cli {
namespace {

struct Command {
  const char* name;
  const char* help;
  int (*run)(const Arguments& arguments);
};

constexpr Command kCommands[] = {
    {"ask", "ask a model about documents", cmd_ask},
    {"serve", "serve it over HTTP, OpenAI-compatible, by classes of keys", cmd_serve},
    {"plugin", "list plugins, or tell all about one", cmd_plugin},
    {"profile", "check a profile, show the values in effect, list the keys", cmd_profile},
    {"model", "tell about the model", cmd_model},
    {"bench", "time the engine, beside llama.cpp", cmd_bench},
    {"eval", "measure what the memory policy costs in accuracy", cmd_eval},
    {"ab", "report on experiments, or stop an arm of one", cmd_ab},
    {"doctor", "measure this machine and say what would be slow, and why", cmd_doctor},
};

void print_help() {
  std::cout << "usage: varve <command> [option]...\n\nAsks long documents; the model's memory is a "
               "policy.\n\nCommands:\n";
  for (const Command& command : kCommands) {
    std::cout << "  " << command.name << std::string(10 - std::strlen(command.name), ' ')
              << command.help << "\n";
  }
  std::cout << R"(
'varve <command> --help' tells the options of a command, with defaults and environment names.

  -h, --help   this text
  --version    versions of the program and of the plugin interface

Exit codes: 0 done; 1 failed; 2 bad command line or profile, nothing was started; 130 interrupted.
)";
}

int unknown_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  std::cerr << "varve: found unknown command " << varve::quoted(name)
            << "; expected one of those that 'varve --help' lists" << varve::suggestion(name, names)
            << "\n";
  return kExitUsage;
}

int run(const Arguments& words) {
  if (words.empty()) {
    std::cerr << "varve: found no command; 'varve --help' lists them\n";
    return kExitUsage;
  }
  if (words[0] == "help" && words.size() == 2) return run({words[1], "--help"});
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    print_help();
    return kExitOk;
  }
  if (words[0] == "--version") {
    std::cout << "varve " << VARVE_VERSION << ", MRI " << version_text(MRI_1_0) << " to "
              << version_text(MRI_HEADER_VERSION) << "\n";
    return kExitOk;
  }
  for (const Command& command : kCommands) {
    if (words[0] == command.name) return command.run(Arguments(words.begin() + 1, words.end()));
  }
  return unknown_command(words[0]);
}

}  // namespace
}  // namespace varve::cli

int main(int argc, char** argv) {
  try {
    return varve::cli::run(varve::cli::Arguments(argv + (argc > 0 ? 1 : 0), argv + argc));
  } catch (const std::bad_alloc&) {
    std::cerr << "varve: out of memory\n";
  } catch (const std::exception& error) {
    std::cerr << "varve: " << error.what() << "\n";
  }
  return varve::cli::kExitFailure;
}
