#include "core/route/dispatcher_changes.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/route/experiment.h"
#include "core/route/experiment_record.h"

namespace varve {
namespace {

enum class Needs { kNothing, kRestart, kNewVersion, kSwap };

struct Entry {
  std::string value;
  Needs needs;
};

// Of a stack's profile, what the process is made with: its threads, its crash handler, and the
// model, whose name it answers to.
bool is_read_at_start(const std::string& table, const std::string& key) {
  return table == "model" || (table == "runtime" && key == "threads") ||
         (table == "plugins" && (key == "crash_dir" || key == "allow_crashed"));
}

// Everything of a configuration by name, so that two can be compared.
class Listing {
 public:
  explicit Listing(const ServeConfig& config) {
    add_server(config.server);
    for (const StackConfig& stack : config.stacks) add_stack(stack);
    for (const ClassConfig& one : config.classes) add_class(one);
    for (const ExperimentConfig& experiment : config.experiments) add_experiment(experiment);
  }
  const std::map<std::string, Entry>& entries() const { return entries_; }

 private:
  template <class T>
  void add(const std::string& table, const char* key, const T& value,
           Needs needs = Needs::kNothing) {
    entries_[absl::StrCat(table, ".", key)] = {absl::StrCat(value), needs};
  }
  void add(const std::string& table, const char* key, absl::Duration value,
           Needs needs = Needs::kNothing) {
    add(table, key, absl::FormatDuration(value), needs);
  }

  void add_server(const ServerConfig& server) {
    const std::string table = "server";
    add(table, "host", server.host, Needs::kRestart);
    add(table, "port", server.port, Needs::kRestart);
    add(table, "http_threads", server.http_threads, Needs::kRestart);
    add(table, "keys_path", server.keys_path);
    add(table, "allow_public_without_keys", server.allow_public_without_keys);
    add(table, "default_class", server.default_class);
    add(table, "allowed_hosts", absl::StrJoin(server.allowed_hosts, " "), Needs::kRestart);
    add(table, "body_mb_max", server.body_mb_max, Needs::kRestart);
    add(table, "connections_max", server.connections_max, Needs::kRestart);
    add(table, "header_timeout_s", server.header_timeout, Needs::kRestart);
    add(table, "idle_timeout_s", server.idle_timeout, Needs::kRestart);
    add(table, "write_timeout_s", server.write_timeout, Needs::kRestart);
    add(table, "shutdown_timeout_s", server.shutdown_timeout);
    add(table, "ping_interval_s", server.ping_interval);
    add(table, "choices_max", server.choices_max);
    add(table, "contexts_max", server.contexts_max);
    add(table, "held_memory_percent", server.held_memory_percent);
    add(table, "unknown_fields", server.unknown_fields);
    add(table, "log_format", server.log_format, Needs::kRestart);
    add(table, "log_level", server.log_level);
    add(table, "experiment_log_path", server.experiment_log_path, Needs::kRestart);
    add(table, "experiment_log_mb_max", server.experiment_log_mb_max, Needs::kRestart);
  }

  void add_stack(const StackConfig& stack) {
    const std::string table = "stack." + stack.name;
    entries_[table] = {"", Needs::kSwap};
    add(table, "concurrency", stack.concurrency);
    add(table, "concurrency_max", stack.concurrency_max);
    add(table, "queue_max", stack.queue_max);
    add(table, "stall_max", stack.stall_max);
    add(table, "step_tokens_max", stack.step_tokens_max);
    add(table, "step_ms_max", stack.step_ms_max);
    add(table, "peak_queue_percent", stack.peak_queue_percent);
    for (const TableSpec& part : profile_tables()) {
      if (part.name == "server") continue;
      for (const auto& [key, setting] : stack.profile.table(part.name)) {
        add(absl::StrCat(table, ".", part.name), key.c_str(), to_text(setting.value),
            is_read_at_start(part.name, key) ? Needs::kRestart : Needs::kSwap);
      }
    }
  }

  void add_class(const ClassConfig& one) {
    const std::string table = "class." + one.name;
    entries_[table] = {"", Needs::kNothing};
    add(table, "stack", one.stack);
    add(table, "priority", one.priority);
    add(table, "max_prompt_tokens", one.max_prompt_tokens);
    add(table, "max_answer_tokens", one.max_answer_tokens);
    add(table, "deadline_s", one.deadline);
    add(table, "yields_summaries_at_peak", one.yields_summaries_at_peak);
  }

  void add_experiment(const ExperimentConfig& experiment) {
    const std::string table = "experiment." + experiment.name;
    std::vector<std::string> stacks;
    for (const ExperimentArm& arm : experiment.arms) stacks.push_back(arm.stack);
    entries_[table] = {"", Needs::kNothing};
    add(table, "version", experiment.version);
    add(table, "class", experiment.class_name, Needs::kNewVersion);
    add(table, "salt", sip_hash(0, 0, experiment.salt), Needs::kNewVersion);
    add(table, "stacks", absl::StrJoin(stacks, " "), Needs::kNewVersion);
    add(table, "mode", experiment.mode, Needs::kNewVersion);
    add(table, "block_s", experiment.block, Needs::kNewVersion);
    add(table, "burn_in_s", experiment.burn_in, Needs::kNewVersion);
    add(table, "arms", weights_text(experiment));
    add(table, "shadow_percent", experiment.shadow_percent);
    add(table, "margin", experiment.margin);
    add(table, "alpha", experiment.alpha);
    add(table, "error_rate_max", experiment.error_rate_max);
    add(table, "kld_max", experiment.kld_max);
    add(table, "top1_min", experiment.top1_min);
    add(table, "min_units", experiment.min_units);
  }

  std::map<std::string, Entry> entries_;
};

class Comparison {
 public:
  Comparison(const ServeConfig& from, const ServeConfig& to, bool may_swap)
      : old_config_(from), new_config_(to), from_(from), to_(to), may_swap_(may_swap) {}

  absl::StatusOr<std::vector<std::string>> changes() {
    for (const auto& [name, entry] : from_.entries()) {
      const auto found = to_.entries().find(name);
      if (found == to_.entries().end()) {
        note(name, name + ": gone", entry.needs);
      } else if (found->second.value != entry.value) {
        const bool is_secret = absl::EndsWith(name, ".salt");
        note(name,
             is_secret ? name + ": changed"
                       : absl::StrCat(name, ": ", entry.value, " -> ", found->second.value),
             entry.needs);
      }
    }
    for (const auto& [name, entry] : to_.entries()) {
      if (from_.entries().count(name) == 0) note(name, name + ": new", entry.needs);
    }
    refuse_lower_versions();
    if (refusals_.empty()) return changes_;
    return absl::FailedPreconditionError(absl::StrJoin(refusals_, "; "));
  }

 private:
  static bool has_table(const Listing& listing, const std::string& name) {
    const std::string table = name.substr(0, name.find('.', name.find('.') + 1));
    return table == name || listing.entries().count(table) != 0;
  }

  // The log has rows of the versions before, and reports would mix them in.
  void refuse_lower_versions() {
    for (const ExperimentConfig& before : old_config_.experiments) {
      for (const ExperimentConfig& after : new_config_.experiments) {
        if (after.name != before.name || after.version >= before.version) continue;
        refusals_.push_back(absl::StrCat("experiment.", after.name, ".version: ", before.version,
                                         " -> ", after.version, ", which needs to be higher"));
      }
    }
  }

  // The experiment of `name` has the same version before and after.
  bool keeps_version(const std::string& name) const {
    const auto version_in = [&](const ServeConfig& config) -> uint32_t {
      for (const ExperimentConfig& one : config.experiments) {
        if (absl::StartsWith(name, absl::StrCat("experiment.", one.name, "."))) return one.version;
      }
      return 0;
    };
    return version_in(old_config_) == version_in(new_config_);
  }

  void note(const std::string& name, const std::string& line, Needs needs) {
    // A table that comes or goes is one line.
    if (!absl::StartsWith(name, "server.") && (!has_table(from_, name) || !has_table(to_, name)))
      return;
    changes_.push_back(line);
    if (needs == Needs::kRestart || (needs == Needs::kSwap && !may_swap_))
      refusals_.push_back(line + ", which needs a restart");
    if (needs == Needs::kNewVersion && keeps_version(name))
      refusals_.push_back(line + ", which needs a higher version of the experiment");
  }

  const ServeConfig &old_config_, &new_config_;
  const Listing from_, to_;
  const bool may_swap_;
  std::vector<std::string> changes_, refusals_;
};

}  // namespace

std::string weights_text(const ExperimentConfig& experiment) {
  std::vector<std::string> arms;
  for (size_t i = 0; i < experiment.arms.size(); ++i)
    arms.push_back(absl::StrCat(arm_name(experiment, i), ":", experiment.arms[i].weight));
  return absl::StrJoin(arms, " ");
}

absl::StatusOr<std::vector<std::string>> config_changes(const ServeConfig& from,
                                                        const ServeConfig& to, bool may_swap) {
  return Comparison(from, to, may_swap).changes();
}

}  // namespace varve
