// varve doctor: what is here, how fast it is, and what would be slow or fail, and why.
#include <unistd.h>

#include <boost/version.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/cpu_target.h"
#include "tools/varve/chosen_plugins.h"
#include "tools/varve/command.h"
#include "tools/varve/doctor_board.h"
#include "tools/varve/machine.h"

namespace varve::cli {
namespace po = boost::program_options;
namespace {

struct Finding {
  std::string what;     // what is slow or fails
  std::string because;  // what was found
  std::string do_this;
};

struct Checkup {
  Machine machine;
  std::string model_path;
  uint64_t model_bytes = 0;  // 0: not readable
  std::vector<std::string> directories;
  std::vector<ListedPlugin> plugins;
  std::vector<Finding> findings;
};

void check_machine(const Machine& machine, std::vector<Finding>& findings) {
  if (!machine.has_avx2) {
    findings.push_back({"everything computes several times slower", "this CPU has no AVX2",
                        "use a CPU of 2013 or later"});
  } else if (!machine.has_avx512) {
    findings.push_back({"attention and decoding compute at about half speed",
                        "this CPU has no AVX-512", "nothing to set; a CPU with AVX-512 is faster"});
  }
  if (!machine.has_bf16_products) {
    findings.push_back({"reading long texts is slower",
                        "this CPU multiplies no bf16 matrices (AVX512_BF16 or AMX)",
                        "set runtime.compute = \"f32\": bf16 is emulated here"});
  }
  constexpr double kSlowReadGbPerS = 8;
  if (machine.read_gb_per_s < kSlowReadGbPerS) {
    findings.push_back({"each token of an answer is slow",
                        absl::StrFormat("memory reads at %.1f GB/s", machine.read_gb_per_s),
                        "stop other programs; use a model with fewer bits per weight"});
  }
#ifndef NDEBUG
  findings.push_back(
      {"everything", "this is a build with assertions", "build with CMAKE_BUILD_TYPE=Release"});
#endif
}

void check_model(const Checkup& checkup, std::vector<Finding>& findings) {
  if (checkup.model_path.empty()) {
    findings.push_back({"no command can run a model",
                        "neither model.path nor VARVE_MODEL names one",
                        "run tools/setup and evaluate what it prints, or name a GGUF file"});
  } else if (checkup.model_bytes == 0) {
    findings.push_back({"no command can run a model",
                        absl::StrCat(checkup.model_path, " cannot be read"),
                        "correct model.path or VARVE_MODEL"});
  } else if (checkup.model_bytes * 2 > checkup.machine.available_bytes) {
    findings.push_back({"loading may fail or swap",
                        absl::StrCat("the model file has ", bytes_text(checkup.model_bytes),
                                     " and packed weights may take twice that; ",
                                     bytes_text(checkup.machine.available_bytes), " are free"),
                        "free memory, or use a smaller model"});
  }
}

void check_plugins(const Checkup& checkup, std::vector<Finding>& findings) {
  for (const ListedPlugin& plugin : checkup.plugins) {
    if (plugin.info.ok()) continue;
    findings.push_back({absl::StrCat(plugin.path, " cannot be used"),
                        std::string(plugin.info.status().message()), "rebuild it, or remove it"});
  }
  if (checkup.plugins.empty()) {
    findings.push_back({"no command can run a model",
                        absl::StrCat("no plugin in ", checkup.directories.front()),
                        "build the plugins, or set plugins.directories"});
  }
}

uint64_t file_bytes(const std::string& path) {
  if (access(path.c_str(), R_OK) != 0) return 0;
  std::error_code failed;
  if (std::filesystem::is_directory(path, failed)) return 1;  // a safetensors folder
  const uint64_t bytes = std::filesystem::file_size(path, failed);
  return failed ? 0 : bytes;
}

absl::StatusOr<Checkup> examine(const Profile& profile, double seconds) {
  Checkup checkup;
  absl::StatusOr<std::string> model_path = profile.path("model", "path");
  if (!model_path.ok()) return model_path.status();
  absl::StatusOr<std::vector<std::string>> directories = plugin_directories(profile);
  if (!directories.ok()) return directories.status();
  checkup.model_path = *std::move(model_path);
  checkup.model_bytes = file_bytes(checkup.model_path);
  checkup.directories = *std::move(directories);
  checkup.plugins = list_plugins(checkup.directories,
                                 [&](std::string_view kind) { return trust_of(profile, kind); });
  checkup.machine = measure_machine(seconds);
  check_machine(checkup.machine, checkup.findings);
  check_model(checkup, checkup.findings);
  check_plugins(checkup, checkup.findings);
  const absl::StatusOr<std::vector<ChosenPlugin>> chosen = chosen_plugins(profile);
  if (!chosen.ok()) {
    checkup.findings.push_back({"this profile starts nothing",
                                std::string(chosen.status().message()), "correct the profile"});
  }
  return checkup;
}

void print_json(const Checkup& checkup) {
  const Machine& machine = checkup.machine;
  nlohmann::ordered_json json = {
      {"cpu",
       {{"name", machine.cpu_name},
        {"features", machine.cpu_features},
        {"target", machine.kernel_target},
        {"cores", machine.n_cores}}},
      {"memory",
       {{"total_bytes", machine.memory_bytes},
        {"available_bytes", machine.available_bytes},
        {"read_gb_per_s", machine.read_gb_per_s}}},
      {"gemm_gflops", {{"f32", machine.gemm_f32_gflops}, {"bf16", machine.gemm_bf16_gflops}}},
      {"libraries", {{"boost", BOOST_LIB_VERSION}, {"compiler", __VERSION__}}},
      {"model", {{"path", checkup.model_path}, {"bytes", checkup.model_bytes}}},
      {"plugin_directories", checkup.directories},
      {"plugins", nlohmann::ordered_json::array()},
      {"findings", nlohmann::ordered_json::array()}};
  for (const ListedPlugin& plugin : checkup.plugins) {
    if (plugin.info.ok()) json["plugins"].push_back(plugin.info->kind + "/" + plugin.info->name);
  }
  for (const Finding& finding : checkup.findings) {
    json["findings"].push_back(
        {{"what", finding.what}, {"because", finding.because}, {"do", finding.do_this}});
  }
  std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

void print_text(const Checkup& checkup) {
  const Machine& machine = checkup.machine;
  std::cout << absl::StrFormat(
      "CPU        %s, %u cores for this process\n"
      "           %s; kernels use %s\n"
      "memory     %s, %s free, reads at %.1f GB/s\n"
      "GEMM       %.0f GFLOP/s in f32, %.0f in bf16\n"
      "libraries  Boost %s; compiler %s\n",
      machine.cpu_name, machine.n_cores, machine.cpu_features, machine.kernel_target,
      bytes_text(machine.memory_bytes), bytes_text(machine.available_bytes), machine.read_gb_per_s,
      machine.gemm_f32_gflops, machine.gemm_bf16_gflops, BOOST_LIB_VERSION, __VERSION__);
  const char* prefix = std::getenv("VARVE_PREFIX");
  if (prefix != nullptr) std::cout << "libllama   " << prefix << " (VARVE_PREFIX)\n";
  std::cout << "model      " << (checkup.model_path.empty() ? "none named" : checkup.model_path);
  if (checkup.model_bytes > 1) std::cout << ", " << bytes_text(checkup.model_bytes);
  std::cout << "\nplugins    in " << absl::StrJoin(checkup.directories, ", ") << ":";
  for (const ListedPlugin& plugin : checkup.plugins) {
    if (plugin.info.ok()) std::cout << " " << plugin.info->kind << "/" << plugin.info->name;
  }
  std::cout << "\n\n"
            << (checkup.findings.empty() ? "Nothing to complain about.\n"
                                         : "What would be slow or fail:\n");
  for (const Finding& finding : checkup.findings) {
    std::cout << "- " << finding.what << "\n    why  " << finding.because << "\n    do   "
              << finding.do_this << "\n";
  }
}

}  // namespace

int cmd_doctor(const Arguments& arguments) {
  CommandLine line(
      "varve doctor [option]...",
      "Looks at the CPU, memory, model and plugins, measures memory bandwidth and matrix products "
      "on all cores,\n"
      "and says what would be slow or fail, and why. The exit code is 0 whatever is found.\n"
      "With --url: the health board of a running server. The exit code is 0 when there is nothing "
      "to change, else 1.");
  line.add()("seconds", po::value<double>()->default_value(0.5)->value_name("S"),
             "time for each of the three measures");
  line.add()("url", po::value<std::string>()->value_name("URL"),
             "http://host:port of a running `varve serve`: ask it instead of this machine");
  line.add()("key-env", po::value<std::string>()->default_value("")->value_name("NAME"),
             "environment variable that holds an API key with scope \"admin\", for --url");
  if (const std::optional<int> done = line.parse(arguments)) return *done;
  if (line.has("url"))
    return doctor_url(line.get<std::string>("url"), line.get<std::string>("key-env"), line.json());
  const auto seconds = line.get<double>("seconds");
  if (!(seconds >= 0 && seconds <= 60)) return line.usage_error("expected --seconds from 0 to 60");
  const std::string target_error = kernels::apply_cpu_target_env();
  if (!target_error.empty()) return line.usage_error(target_error);
  const absl::StatusOr<Profile> profile = line.profile();
  if (!profile.ok()) return report(profile.status(), kExitUsage);
  const absl::StatusOr<Checkup> checkup = examine(*profile, seconds);
  if (!checkup.ok()) return report(checkup.status(), kExitUsage);
  if (line.json()) {
    print_json(*checkup);
  } else {
    print_text(*checkup);
  }
  return kExitOk;
}

}  // namespace varve::cli
