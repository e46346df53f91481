// What `varve serve` reads from a profile beyond the stack: [server], [class.NAME], [stack.NAME],
// [experiment.NAME], as plain structs.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/config/profile.h"

namespace varve {

// The stack that the profile itself describes.
inline constexpr char kMainStack[] = "main";

struct ServerConfig {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;  // 0: any free one, told in the log
  uint32_t http_threads = 1;
  std::string keys_path;  // empty: no keys, everybody is `anonymous` of class default_class
  bool allow_public_without_keys = false;
  std::string default_class = "standard";
  std::vector<std::string>
      allowed_hosts;  // Host headers beside loopback names and the bound address
  uint64_t body_mb_max = 16;
  uint32_t connections_max = 4096;
  absl::Duration header_timeout, idle_timeout, write_timeout, shutdown_timeout, ping_interval;
  uint32_t choices_max = 8;               // n, and prompts of one request
  uint32_t contexts_max = 64;             // registered at once, per tenant
  uint32_t held_memory_percent = 50;      // of a stack's KV budget, for contexts between requests
  std::string unknown_fields = "ignore";  // ignore | warn | reject
  std::string log_format = "auto";        // auto | text | json
  std::string log_level = "info";
  std::string experiment_log_path;  // SQLite; empty: no experiments may be configured
  uint64_t experiment_log_mb_max = 256;
};

struct ClassConfig {
  std::string name;
  std::string stack = kMainStack;
  uint32_t priority = 0;
  uint64_t max_prompt_tokens = 0;  // 0: the stack's limit
  uint64_t max_answer_tokens = 4096;
  absl::Duration deadline;  // longest time a request may take; infinite when the profile says 0
  bool yields_summaries_at_peak = false;
};

// A stack is a profile of its own; only its model and stack tables count.
struct StackConfig {
  std::string name;
  Profile profile;
  uint32_t concurrency = 16, concurrency_max = 32, queue_max = 0;
  double stall_max = 2.5;
  uint32_t step_tokens_max = 4096, step_ms_max = 100;
  uint32_t peak_queue_percent = 0;
};

struct ExperimentArm {
  std::string stack;
  double weight = 0;  // per cent
};

struct ExperimentConfig {
  std::string name;
  uint32_t version = 1;
  std::string class_name;
  std::string salt;                 // the key of the hash; a new salt is a new experiment
  std::vector<ExperimentArm> arms;  // the first is the control
  std::string mode = "unit";        // unit | switchback | aa
  absl::Duration block, burn_in;    // switchback
  double shadow_percent = 0;        // of the control's requests replayed on the last arm
  double margin = 0.05;             // tolerated relative loss of a latency quantile
  double alpha = 0.01;
  double error_rate_max = 0.02;  // guardrails: over the control's
  double kld_max = 0.01, top1_min = 0.99;
  uint64_t min_units = 50;  // before a guardrail may stop an arm
};

struct ServeConfig {
  ServerConfig server;
  std::vector<StackConfig> stacks;  // main first
  std::vector<ClassConfig> classes;
  std::vector<ExperimentConfig> experiments;
};

std::vector<std::string> class_names(const ServeConfig& config);
// Those of classes and experiments, and main.
std::set<std::string> used_stacks(const ServeConfig& config);

// Every mistake named with its place: unknown stacks, classes, weights that do not sum to 100,
// salts used twice, a public address without keys.
absl::StatusOr<ServeConfig> load_serve_config(const Profile& profile,
                                              const ProfileSources& sources);

}  // namespace varve
