#include "core/config/serve_config.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/config/nearest_name.h"
#include "core/config/profile_builder.h"

namespace varve {
namespace {

constexpr size_t kSaltCharsMin = 16;

bool is_loopback(const std::string& host) {
  in_addr four{};
  in6_addr six{};
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24) == 127;
  if (inet_pton(AF_INET6, host.c_str(), &six) == 1) return IN6_IS_ADDR_LOOPBACK(&six) != 0;
  return host == "localhost";
}

class Loader {
 public:
  Loader(const Profile& profile, const ProfileSources& sources)
      : profile_(profile), sources_(sources) {}

  absl::StatusOr<ServeConfig> load() {
    load_server();
    load_stacks();
    load_classes();
    for (const std::string& name : profile_.names("experiment")) load_experiment(name);
    const absl::Status status = errors_.status();
    if (!status.ok()) return status;
    return std::move(config_);
  }

 private:
  // A table's values; the table exists.
  struct Table {
    const Profile& profile;
    std::string name;
    const std::string& text(const char* key) const { return profile.text(name, key); }
    uint64_t integer(const char* key) const {
      return static_cast<uint64_t>(profile.integer(name, key));
    }
    uint32_t small(const char* key) const { return static_cast<uint32_t>(integer(key)); }
    double number(const char* key) const { return profile.number(name, key); }
    bool boolean(const char* key) const { return profile.boolean(name, key); }
    absl::Duration seconds(const char* key) const { return absl::Seconds(number(key)); }
    const std::vector<std::string>& list(const char* key) const {
      return std::get<std::vector<std::string>>(profile.find(name, key)->value);
    }
  };

  void error(const std::string& table, const std::string& key, const std::string& text) {
    errors_.add(Layer::kFile, 0, 0,
                absl::StrCat(profile_.find(table, key)->where, ": ", table, ".", key, ": ", text));
  }

  std::string path(const std::string& table, const std::string& key) {
    absl::StatusOr<std::string> path = profile_.path(table, key);
    if (path.ok()) return *std::move(path);
    errors_.add(Layer::kFile, 0, 0, std::string(path.status().message()));
    return "";
  }

  // The place of a name that must be one of `known`.
  void check_name(const std::string& table, const std::string& key, const std::string& name,
                  const std::vector<std::string>& known, const char* what) {
    if (std::find(known.begin(), known.end(), name) != known.end()) return;
    error(table, key,
          absl::StrCat("found ", quoted(name), "; expected a ", what,
                       " of this profile: ", absl::StrJoin(known, ", "), suggestion(name, known)));
  }

  void load_server();
  void load_stacks();
  void load_lane(const std::string& name, StackConfig& stack);
  void load_stack_profile(const std::string& name, StackConfig& stack);
  void load_classes();
  void load_experiment(const std::string& name);
  void load_arms(const std::string& table, ExperimentConfig& experiment);
  void check_experiment(const std::string& table, const ExperimentConfig& experiment);

  std::vector<std::string> stack_names() const {
    std::vector<std::string> names;
    for (const StackConfig& stack : config_.stacks) names.push_back(stack.name);
    return names;
  }

  const Profile& profile_;
  const ProfileSources& sources_;
  ErrorList errors_;
  ServeConfig config_;
  std::map<std::string, std::string> salts_, classes_;  // whose they are
};

void Loader::load_server() {
  const Table table{profile_, "server"};
  ServerConfig& server = config_.server;
  server.host = table.text("host");
  server.port = static_cast<uint16_t>(table.integer("port"));
  server.http_threads = table.small("http_threads");
  server.keys_path = path("server", "keys_path");
  server.allow_public_without_keys = table.boolean("allow_public_without_keys");
  server.default_class = table.text("default_class");
  server.allowed_hosts = table.list("allowed_hosts");
  server.body_mb_max = table.integer("body_mb_max");
  server.connections_max = table.small("connections_max");
  server.header_timeout = table.seconds("header_timeout_s");
  server.idle_timeout = table.seconds("idle_timeout_s");
  server.write_timeout = table.seconds("write_timeout_s");
  server.shutdown_timeout = table.seconds("shutdown_timeout_s");
  server.ping_interval = table.seconds("ping_interval_s");
  server.choices_max = table.small("choices_max");
  server.contexts_max = table.small("contexts_max");
  server.held_memory_percent = table.small("held_memory_percent");
  server.unknown_fields = table.text("unknown_fields");
  server.log_format = table.text("log_format");
  server.log_level = table.text("log_level");
  server.experiment_log_path = path("server", "experiment_log_path");
  server.experiment_log_mb_max = table.integer("experiment_log_mb_max");
  if (server.keys_path.empty() && !server.allow_public_without_keys && !is_loopback(server.host)) {
    error("server", "host",
          absl::StrCat("found ", quoted(server.host),
                       ", which others reach, and no keys; expected server.keys_path, a loopback "
                       "address, or server.allow_public_without_keys = true"));
  }
}

void Loader::load_stacks() {
  config_.stacks.push_back({});
  config_.stacks.back().name = kMainStack;
  config_.stacks.back().profile = profile_;
  for (const std::string& name : profile_.names("stack")) {
    if (name != kMainStack) config_.stacks.push_back({});
    StackConfig& stack = name == kMainStack ? config_.stacks.front() : config_.stacks.back();
    stack.name = name;
    load_lane("stack." + name, stack);
    load_stack_profile("stack." + name, stack);
  }
}

void Loader::load_lane(const std::string& name, StackConfig& stack) {
  const Table table{profile_, name};
  stack.concurrency = table.small("concurrency");
  stack.concurrency_max = table.small("concurrency_max");
  stack.queue_max = table.small("queue_max");
  stack.stall_max = table.number("stall_max");
  stack.step_tokens_max = table.small("step_tokens_max");
  stack.step_ms_max = table.small("step_ms_max");
  stack.peak_queue_percent = table.small("peak_queue_percent");
  if (profile_.find(name, "concurrency_max")->layer == Layer::kDefault)
    stack.concurrency_max = std::max(stack.concurrency, stack.concurrency_max);
  if (stack.concurrency > stack.concurrency_max) {
    error(name, "concurrency_max",
          absl::StrCat("found ", stack.concurrency_max, "; expected concurrency, ",
                       stack.concurrency, ", or more"));
  }
}

void Loader::load_stack_profile(const std::string& name, StackConfig& stack) {
  const std::string file = path(name, "profile");
  if (stack.name == kMainStack) {
    if (!file.empty())
      error(name, "profile", "found a profile; expected none: main is the stack of this profile");
    return;
  }
  if (file.empty()) {
    errors_.add(Layer::kFile, 0, 0,
                absl::StrCat(sources_.path, ": [", name,
                             "]: found no profile; expected profile = \"file.toml\""));
    return;
  }
  ProfileSources sources{file, {}, {}};
  const std::string prefix = environment_name("model", "");
  for (const auto& variable : sources_.environment) {
    if (variable.first.rfind(prefix, 0) == 0) sources.environment.push_back(variable);
  }
  for (const std::string& assignment : sources_.overrides) {
    if (assignment.rfind("model.", 0) == 0) sources.overrides.push_back(assignment);
  }
  absl::StatusOr<Profile> loaded = Profile::load(sources);
  absl::Status status = loaded.ok() ? loaded->inherit(profile_) : loaded.status();
  if (!status.ok()) return error(name, "profile", std::string(status.message()));
  stack.profile = *std::move(loaded);
}

void Loader::load_classes() {
  for (const std::string& name : profile_.names("class")) {
    const Table table{profile_, "class." + name};
    ClassConfig one;
    one.name = name;
    one.stack = table.text("stack");
    one.priority = table.small("priority");
    one.max_prompt_tokens = table.integer("max_prompt_tokens");
    one.max_answer_tokens = table.integer("max_answer_tokens");
    one.deadline =
        table.number("deadline_s") == 0 ? absl::InfiniteDuration() : table.seconds("deadline_s");
    one.yields_summaries_at_peak = table.boolean("yields_summaries_at_peak");
    check_name(table.name, "stack", one.stack, stack_names(), "stack");
    config_.classes.push_back(std::move(one));
  }
  if (config_.classes.empty()) {
    config_.classes.push_back({});
    config_.classes.back().name = "standard";
    config_.classes.back().deadline = absl::InfiniteDuration();
  }
  check_name("server", "default_class", config_.server.default_class, class_names(config_),
             "class");
}

void Loader::load_experiment(const std::string& name) {
  const Table table{profile_, "experiment." + name};
  ExperimentConfig experiment;
  experiment.name = name;
  experiment.version = table.small("version");
  experiment.class_name = table.text("class");
  experiment.salt = table.text("salt");
  experiment.mode = table.text("mode");
  experiment.block = table.seconds("block_s");
  experiment.burn_in = table.seconds("burn_in_s");
  experiment.shadow_percent = table.number("shadow_percent");
  experiment.margin = table.number("margin");
  experiment.alpha = table.number("alpha");
  experiment.error_rate_max = table.number("error_rate_max");
  experiment.kld_max = table.number("kld_max");
  experiment.top1_min = table.number("top1_min");
  experiment.min_units = table.integer("min_units");
  load_arms(table.name, experiment);
  check_experiment(table.name, experiment);
  config_.experiments.push_back(std::move(experiment));
}

void Loader::load_arms(const std::string& table, ExperimentConfig& experiment) {
  // Joined first: on the command line ':' separates the items of a list.
  const std::string text = absl::StrJoin(Table{profile_, table}.list("arms"), ":");
  const std::vector<std::string> words = absl::StrSplit(text, ':', absl::SkipEmpty());
  const auto bad = [&](const std::string& why) {
    error(table, "arms",
          absl::StrCat("found ", why,
                       "; expected stack:percent, the control first, such as "
                       "[\"main:95\", \"int4:5\"]"));
  };
  double sum = 0;
  std::set<std::string> seen;
  for (size_t i = 0; i < words.size(); i += 2) {
    ExperimentArm arm{words[i], 0};
    if (i + 1 == words.size() || !absl::SimpleAtod(words[i + 1], &arm.weight) ||
        !(arm.weight >= 0 && arm.weight <= 100)) {
      return bad(absl::StrCat("no per cent from 0 to 100 for ", quoted(arm.stack)));
    }
    check_name(table, "arms", arm.stack, stack_names(), "stack");
    if (!seen.insert(arm.stack).second && experiment.mode != "aa")
      return bad(absl::StrCat("the stack ", quoted(arm.stack), " twice, which only mode aa has"));
    sum += arm.weight;
    experiment.arms.push_back(std::move(arm));
  }
  if (experiment.arms.size() < 2) return bad(absl::StrCat(experiment.arms.size(), " arms"));
  if (experiment.mode == "aa" && seen.size() != 1) return bad("two stacks with mode aa");
  if (std::abs(sum - 100) > 1e-6)
    return bad(absl::StrCat("weights that sum to ", sum, ", not 100"));
}

void Loader::check_experiment(const std::string& table, const ExperimentConfig& experiment) {
  check_name(table, "class", experiment.class_name, class_names(config_), "class");
  const auto [of_class, is_first] = classes_.emplace(experiment.class_name, experiment.name);
  if (!is_first) {
    error(table, "class",
          absl::StrCat("found ", quoted(experiment.class_name), ", which [experiment.",
                       of_class->second, "] has; expected one experiment per class"));
  }
  for (const ClassConfig& one : config_.classes) {
    if (one.name != experiment.class_name || experiment.arms.empty() ||
        one.stack == experiment.arms[0].stack)
      continue;
    error(table, "arms",
          absl::StrCat("found the control ", quoted(experiment.arms[0].stack),
                       "; expected the stack of class ", one.name, ", ", one.stack));
  }
  if (experiment.salt.size() < kSaltCharsMin) {
    error(table, "salt",
          absl::StrCat("found ", experiment.salt.size(), " characters; expected at least ",
                       kSaltCharsMin, ", such as openssl rand -hex 16 writes"));
  } else if (const auto [of_salt, is_new] = salts_.emplace(experiment.salt, experiment.name);
             !is_new) {
    error(table, "salt",
          absl::StrCat("found the salt of [experiment.", of_salt->second,
                       "]; expected another: the same would draw the same arms"));
  }
  if (experiment.mode == "switchback" && experiment.burn_in >= experiment.block)
    error(table, "burn_in_s", "found block_s or more; expected less");
  if (config_.server.experiment_log_path.empty()) {
    error(table, "arms",
          "found no server.experiment_log_path; expected a file for what this is judged by");
  }
}

}  // namespace

std::vector<std::string> class_names(const ServeConfig& config) {
  std::vector<std::string> names;
  for (const ClassConfig& one : config.classes) names.push_back(one.name);
  return names;
}

std::set<std::string> used_stacks(const ServeConfig& config) {
  std::set<std::string> used = {kMainStack};
  for (const ClassConfig& entry : config.classes) used.insert(entry.stack);
  for (const ExperimentConfig& experiment : config.experiments) {
    for (const ExperimentArm& arm : experiment.arms) used.insert(arm.stack);
  }
  return used;
}

absl::StatusOr<ServeConfig> load_serve_config(const Profile& profile,
                                              const ProfileSources& sources) {
  return Loader(profile, sources).load();
}

}  // namespace varve
