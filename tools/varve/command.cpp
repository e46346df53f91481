#include "tools/varve/command.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <typeinfo>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/config/nearest_name.h"

namespace varve::cli {
namespace po = boost::program_options;
namespace {

constexpr unsigned kHelpColumns = 100;

std::atomic<uint32_t> interrupted{0};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "set in a signal handler");

// What is wrong with a number among the options, or "". Boost takes "-1" for the largest number
// there is, and of "x" it does not say what it expected.
std::string number_mistake(const po::parsed_options& parsed, const po::options_description& known) {
  for (const po::option& option : parsed.options) {
    if (option.position_key >= 0 || option.value.empty()) continue;
    const auto* typed = dynamic_cast<const po::typed_value_base*>(
        known.find(option.string_key, false).semantic().get());
    if (typed == nullptr) continue;
    const std::type_info& type = typed->value_type();
    const std::string& text = option.value.front();
    uint64_t whole = 0;
    double number = 0;
    std::string expected;
    if (type == typeid(uint64_t) && !absl::SimpleAtoi(text, &whole)) {
      expected = "a whole number from 0";
    } else if (type == typeid(uint32_t) &&
               (!absl::SimpleAtoi(text, &whole) || whole > UINT32_MAX)) {
      expected = absl::StrCat("a whole number from 0 to ", UINT32_MAX);
    } else if (type == typeid(double) && !absl::SimpleAtod(text, &number)) {
      expected = "a number";
    }
    if (expected.empty()) continue;
    return absl::StrCat("--", option.string_key, ": found ", varve::quoted(text), "; expected ",
                        expected);
  }
  return "";
}

std::string unknown_option(const po::unknown_option& error, const po::options_description& known) {
  std::vector<std::string> names;
  for (const auto& option : known.options()) names.push_back("--" + option->long_name());
  return absl::StrCat("found the unknown option ", varve::quoted(error.get_option_name()),
                      "; expected one of those that --help lists",
                      varve::suggestion(error.get_option_name(), names));
}

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
  po::options_description named, all;
  named.add(own_).add(common_);
  all.add(named).add_options()("positional", po::value<std::vector<std::string>>());
  po::positional_options_description positional;
  positional.add("positional", -1);
  try {
    // Abbreviated options would change meaning when an option is added.
    const int style =
        po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
    const po::parsed_options parsed =
        po::command_line_parser(arguments).options(all).positional(positional).style(style).run();
    if (const std::string mistake = number_mistake(parsed, all); !mistake.empty())
      return usage_error(mistake);
    po::store(parsed, values_);
    po::notify(values_);
  } catch (const po::unknown_option& error) {
    return usage_error(unknown_option(error, named));
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

int CommandLine::unknown_word(const std::string& word,
                              const std::vector<std::string>& words) const {
  return usage_error(absl::StrCat("found ", word.empty() ? "nothing" : varve::quoted(word),
                                  "; expected one of ", absl::StrJoin(words, ", "),
                                  word.empty() ? "" : varve::suggestion(word, words)));
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
