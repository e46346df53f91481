// mri-conform: does a plugin, or a server, keep the contract of MRI?
#include <boost/program_options.hpp>
#include <iostream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/mri_conform/official.h"
#include "tools/mri_conform/runner.h"
#include "tools/varve/http_client.h"

namespace varve::conform {
namespace {

namespace po = boost::program_options;

constexpr int kPassed = 0, kNotPassed = 1, kUsage = 2;
constexpr const char* kAbout =
    "mri-conform [option]... FILE.so | http://HOST:PORT\n"
    "mri-conform verify FOLDER [FILE.so]\n"
    "mri-conform --list [--markdown]\n\n"
    "Runs every test of the plugin's kind (mri/conformance/README.md), each in a process of its "
    "own, "
    "as a host of MRI 1.0 and\nof 1.1. Exit code 0: passed, 1: not passed, 2: nothing was run.\n\n"
    "Levels: 0 the file, 1 loading and life, 2 sizes and errors, 3 behaviour, 4 threads and "
    "made-up "
    "input,\n5 speed (told, not judged).\n";

po::options_description known_options() {
  po::options_description options("Options");
  options.add_options()("help,h", "this text")("kind", po::value<std::string>()->default_value(""),
                                               "the kind that the plugin must be of")(
      "level", po::value<int>()->default_value(4), "the highest level to run, 0 to 5")(
      "mri", po::value<std::string>()->default_value(""),
      "one version of the host only: 1.0 or 1.1")("seed", po::value<uint64_t>()->default_value(1),
                                                  "of everything random")(
      "reproduce", po::value<std::string>(), "TEST:SEED: this test alone, with this seed")(
      "set", po::value<std::vector<std::string>>(),
      "key=value: a parameter of the plugin; may be repeated")(
      "timeout", po::value<double>()->default_value(60), "of each test, in seconds")(
      "key-env", po::value<std::string>()->default_value(""),
      "environment variable with the server's key")("json", po::value<std::string>(),
                                                    "write the results there")(
      "junit", po::value<std::string>(), "write a JUnit report there")(
      "official", po::value<std::string>(),
      "a package of all levels at all versions, into this folder")("list", "the tests, one a line")(
      "markdown", "with --list: as the documentation has them")(
      "must-pass", po::value<std::string>(), "the must-pass list of a version");
  return options;
}

int usage_error(const std::string& text) {
  std::cerr << "mri-conform: " << text << "; see mri-conform --help\n";
  return kUsage;
}

uint32_t version_of(const std::string& name) {
  return name == "1.0" ? MRI_1_0 : name == "1.1" ? MRI_1_1 : 0;
}

void print_list() {
  for (const mri::conformance::Test& test : mri::conformance::all_tests()) {
    std::cout << test.level << "  " << test.id << "  " << test.summary << "\n";
  }
}

int verify(const std::vector<std::string>& words) {
  if (words.size() < 2 || words.size() > 3)
    return usage_error("verify wants a folder, and perhaps the plugin");
  const absl::Status status = verify_package(words[1], words.size() == 3 ? words[2] : "");
  std::cout << (status.ok() ? "the package is whole, and the plugin passed"
                            : std::string(status.message()))
            << "\n";
  return status.ok() ? kPassed : kNotPassed;
}

// What the command line says; `error` when it cannot be.
Options options_of(const po::variables_map& values, std::string* error) {
  Options options;
  options.kind = values["kind"].as<std::string>();
  options.level_max = values["level"].as<int>();
  options.seed = values["seed"].as<uint64_t>();
  options.timeout_s = values["timeout"].as<double>();
  options.versions = {MRI_1_0, MRI_1_1};
  if (const std::string& mri = values["mri"].as<std::string>(); !mri.empty()) {
    options.versions = {version_of(mri)};
    if (version_of(mri) == 0) *error = absl::StrCat("--mri: found ", mri, "; expected 1.0 or 1.1");
  }
  if (options.level_max < 0 || options.level_max > 5) *error = "--level: expected 0 to 5";
  if (!(options.timeout_s >= 1 && options.timeout_s <= 3600))
    *error = "--timeout: expected 1 to 3600";
  if (values.count("reproduce") != 0) {
    const std::string& text = values["reproduce"].as<std::string>();
    const size_t colon = text.find(':');
    options.only = text.substr(0, colon);
    if (colon != std::string::npos && !absl::SimpleAtoi(text.substr(colon + 1), &options.seed)) {
      *error = absl::StrCat("--reproduce: found ", text, "; expected TEST:SEED");
    }
  }
  if (values.count("set") != 0) {
    for (const std::string& text : values["set"].as<std::vector<std::string>>()) {
      const size_t equals = text.find('=');
      if (equals == std::string::npos)
        *error = absl::StrCat("--set: found ", text, "; expected key=value");
      options.params.emplace_back(text.substr(0, equals),
                                  equals == std::string::npos ? "" : text.substr(equals + 1));
    }
  }
  if (values.count("official") == 0) return options;
  const bool is_plain = options.only.empty() && options.seed == 1 && options.versions.size() == 2 &&
                        values["level"].defaulted() && options.params.empty();
  if (!is_plain)
    *error =
        "--official runs everything as it is: without --level, --mri, --seed, --set, --reproduce";
  options.level_max = 5;
  return options;
}

int write_results(const po::variables_map& values, const Outcome& outcome) {
  std::vector<absl::Status> written;
  if (values.count("json") != 0) {
    written.push_back(write_whole_file(values["json"].as<std::string>(), to_json(outcome)));
  }
  if (values.count("junit") != 0) {
    written.push_back(write_whole_file(values["junit"].as<std::string>(), to_junit(outcome)));
  }
  if (values.count("official") != 0) {
    written.push_back(write_package(values["official"].as<std::string>(), outcome));
  }
  for (const absl::Status& status : written) {
    if (!status.ok()) return usage_error(std::string(status.message()));
  }
  return outcome.is_passed() ? kPassed : kNotPassed;
}

int main_with(const po::variables_map& values, const po::options_description& known) {
  if (values.count("help") != 0) {
    std::cout << kAbout << "\n" << known;
    return kPassed;
  }
  if (values.count("list") != 0) {
    if (values.count("markdown") != 0) std::cout << tests_page();
    if (values.count("markdown") == 0) print_list();
    return kPassed;
  }
  if (values.count("must-pass") != 0) {
    const uint32_t version = version_of(values["must-pass"].as<std::string>());
    if (version == 0) return usage_error("--must-pass: expected 1.0 or 1.1");
    std::cout << must_pass_list(version);
    return kPassed;
  }
  std::vector<std::string> words;
  if (values.count("words") != 0) words = values["words"].as<std::vector<std::string>>();
  if (!words.empty() && words[0] == "verify") return verify(words);
  if (words.size() != 1) return usage_error("expected one plugin or URL");
  std::string error;
  Options options = options_of(values, &error);
  if (!error.empty()) return usage_error(error);
  options.target = words[0];
  const absl::StatusOr<std::string> key =
      cli::key_from_environment(values["key-env"].as<std::string>());
  if (!key.ok()) return usage_error(std::string(key.status().message()));
  options.key = *key;
  const absl::StatusOr<Outcome> outcome = run(options);
  if (!outcome.ok()) return usage_error(std::string(outcome.status().message()));
  std::cout << to_text(*outcome);
  return write_results(values, *outcome);
}

}  // namespace
}  // namespace varve::conform

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  const po::options_description known = varve::conform::known_options();
  po::options_description accepted;  // what is not an option has a name, too, but no help
  accepted.add(known).add_options()("words", po::value<std::vector<std::string>>());
  po::positional_options_description words;
  words.add("words", -1);
  try {
    po::variables_map values;
    po::store(po::command_line_parser(argc, argv).options(accepted).positional(words).run(),
              values);
    po::notify(values);
    return varve::conform::main_with(values, known);
  } catch (const std::exception& e) {
    return varve::conform::usage_error(e.what());
  }
}
