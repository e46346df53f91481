// A command of the program: a file cmd_<name>.cpp with one function, and a line in main.cpp's
// table.
#pragma once

#include <atomic>
#include <boost/program_options.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/config/profile.h"

namespace varve::cli {

// Documented in `varve --help`.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;  // bad command line or profile: nothing was started
inline constexpr int kExitInterrupted = 130;

// What follows the command's name.
using Arguments = std::vector<std::string>;

int cmd_ab(const Arguments& arguments);
int cmd_ask(const Arguments& arguments);
int cmd_bench(const Arguments& arguments);
int cmd_doctor(const Arguments& arguments);
int cmd_eval(const Arguments& arguments);
int cmd_model(const Arguments& arguments);
int cmd_plugin(const Arguments& arguments);
int cmd_profile(const Arguments& arguments);
int cmd_serve(const Arguments& arguments);

// The command line of one command. Every command has --help, --profile, --set and --json.
class CommandLine {
 public:
  // `usage`: "varve ask [option]... \"question\"". `about`: a sentence or a few, shown by --help.
  CommandLine(std::string usage, std::string about);

  // For the command's own options, before parse().
  boost::program_options::options_description_easy_init add() { return own_.add_options(); }
  // Arguments without a dash, in order; at most `n_max` of them. `name` is for messages.
  void positional(const std::string& name, int n_max);

  // Nothing: go on. Else the exit code: the help was printed, or what is wrong with the line.
  std::optional<int> parse(const Arguments& arguments);

  bool has(const std::string& option) const { return values_.count(option) != 0; }
  template <class T>
  const T& get(const std::string& option) const {
    return values_[option].as<T>();
  }
  std::vector<std::string> list(const std::string& option) const;
  bool json() const { return has("json"); }

  // "2 bad usage": prints the message and how to get help.
  int usage_error(const std::string& message) const;
  // The same for a first word, or none, that is not one of `words`.
  int unknown_word(const std::string& word, const std::vector<std::string>& words) const;

  // --profile or VARVE_PROFILE, environment and --set, merged and checked.
  ProfileSources profile_sources() const;
  absl::StatusOr<Profile> profile() const { return Profile::load(profile_sources()); }

 private:
  void print_help() const;

  std::string usage_, about_;
  std::string positional_name_;
  int n_positional_max_ = 0;
  boost::program_options::options_description own_, common_;
  boost::program_options::variables_map values_;
};

// Prints "varve: <message>" to stderr and returns `exit_code`, or kExitInterrupted for a cancelled
// call.
int report(const absl::Status& status, int exit_code);

// After this the first SIGINT or SIGTERM sets the flag, the second one ends the process.
const std::atomic<uint32_t>& catch_interrupts();

// "1.2 GiB", "45,012".
std::string bytes_text(uint64_t bytes);
std::string count_text(uint64_t n);

}  // namespace varve::cli
