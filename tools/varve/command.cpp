#include "tools/varve/command.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace varve::cli {
namespace po = boost::program_options;
namespace {

constexpr unsigned kHelpColumns = 100;

std::atomic<uint32_t> interrupted{0};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "set in a signal handler");

}  // namespace

CommandLine::CommandLine(std::string usage, std::string about)
    : usage_(std::move(usage)),
      about_(std::move(about)),
      own_("Options", kHelpColumns),
      common_("Options of every command", kHelpColumns) {
  common_.add_options()("profile", po::value<std::string>()->value_name("FILE"),
                        "TOML profile (default: the environment variable VARVE_PROFILE; without "
                        "it, built-in values)")(
      "set", po::value<std::vector<std::string>>()->value_name("TABLE.KEY=VALUE")->composing(),
      "overrides a key of the profile; repeatable")(
      "json", "print one JSON object on standard output")("help,h", "this text");
}

void CommandLine::positional(const std::string& name, int n_max) {
  positional_name_ = name;
  n_positional_max_ = n_max;
}

std::optional<int> CommandLine::parse(const Arguments& arguments) {
  po::options_description all;
  all.add(own_).add(common_);
  all.add_options()("positional", po::value<std::vector<std::string>>());
  po::positional_options_description positional;
  positional.add("positional", -1);
  try {
    // Abbreviated options would change meaning when an option is added.
    const int style =
        po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
    po::store(
        po::command_line_parser(arguments).options(all).positional(positional).style(style).run(),
        values_);
    po::notify(values_);
  } catch (const po::error& error) {
    return usage_error(error.what());
  }
  if (has("help")) {
    print_help();
    return kExitOk;
  }
  const std::vector<std::string> words = list("positional");
  if (words.size() > static_cast<size_t>(n_positional_max_)) {
    return usage_error(
        absl::StrCat("found an argument too many, ",
                     varve::quoted(words[static_cast<size_t>(n_positional_max_)]),
                     "; expected at most ", n_positional_max_,
                     positional_name_.empty() ? "" : absl::StrCat(" (", positional_name_, ")")));
  }
  return std::nullopt;
}

std::vector<std::string> CommandLine::list(const std::string& option) const {
  return has(option) ? get<std::vector<std::string>>(option) : std::vector<std::string>();
}

int CommandLine::usage_error(const std::string& message) const {
  std::cerr << "varve: " << message << "\nusage: " << usage_ << " (--help tells more)\n";
  return kExitUsage;
}

ProfileSources CommandLine::profile_sources() const {
  ProfileSources sources;
  const char* variable = std::getenv("VARVE_PROFILE");
  if (has("profile")) {
    sources.path = get<std::string>("profile");
  } else if (variable != nullptr) {
    sources.path = variable;
  }
  sources.environment = varve_environment();
  sources.overrides = list("set");
  return sources;
}

void CommandLine::print_help() const {
  std::cout << "usage: " << usage_ << "\n\n" << about_ << "\n\n";
  if (!own_.options().empty()) std::cout << own_ << "\n";
  std::cout << common_ << R"(
Environment:
  VARVE_MODEL           the model file, where the profile names none
  VARVE_PROFILE         the profile, where --profile names none
  VARVE_<TABLE>_<KEY>   a key of the profile: VARVE_RUNTIME_THREADS=2
A key is taken from --set, else the environment, else the profile, else its default.
'varve profile keys' lists every key with default, range and environment name.
)";
}

int report(const absl::Status& status, int exit_code) {
  if (status.code() == absl::StatusCode::kCancelled) {
    std::cerr << "varve: interrupted\n";
    return kExitInterrupted;
  }
  std::cerr << "varve: " << status.message() << "\n";
  return exit_code;
}

const std::atomic<uint32_t>& catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted.store(1, std::memory_order_relaxed); };
  action.sa_flags = SA_RESETHAND;  // the second signal meets the default action
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return interrupted;
}

std::string bytes_text(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto amount = static_cast<double>(bytes);
  size_t unit = 0;
  while (amount >= 1024 && unit + 1 < std::size(kUnits)) {
    amount /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.*f %s", unit == 0 ? 0 : 1, amount, kUnits[unit]);
}

std::string count_text(uint64_t n) {
  const std::string digits = absl::StrCat(n);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

}  // namespace varve::cli
