#include "core/config/keys.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/limits.h"

namespace varve {
namespace {

KeySpec text_key(std::string key, std::string default_value, std::string help) {
  return {std::move(key),
          std::move(help),
          "",
          ValueType::kString,
          Value(std::move(default_value)),
          0,
          0};
}

KeySpec int_key(std::string key, int64_t default_value, double min, double max, std::string help) {
  return {std::move(key), std::move(help), "", ValueType::kInt, Value(default_value), min, max};
}

KeySpec float_key(std::string key, double default_value, double min, double max, std::string help) {
  return {std::move(key), std::move(help), "", ValueType::kFloat, Value(default_value), min, max};
}

KeySpec bool_key(std::string key, bool default_value, std::string help) {
  return {std::move(key), std::move(help), "", ValueType::kBool, Value(default_value), 0, 0};
}

KeySpec list_key(std::string key, std::string help) {
  return {std::move(key),
          std::move(help),
          "",
          ValueType::kStrings,
          Value(std::vector<std::string>{}),
          0,
          0};
}

KeySpec choice_key(std::string key, std::string default_value, std::string choices,
                   std::string help) {
  KeySpec spec = text_key(std::move(key), std::move(default_value), std::move(help));
  spec.choices = std::move(choices);
  return spec;
}

// "none" leaves a kind out, except the runtime.
KeySpec plugin_key(const char* default_value, const char* help) {
  return text_key("plugin", default_value, help);
}

// Where the plugin runs. Others than runtime and attention may have a process of their own.
TableSpec with_isolation(TableSpec table) {
  constexpr double kDeadlineMsMax = 3'600'000;
  const auto add = [&](KeySpec key) { table.keys.push_back(std::move(key)); };
  add(choice_key("isolation", "in_process", "in_process|worker",
                 "worker: in a process of its own, whose death harms nobody else; some "
                 "microseconds a call"));
  add(list_key("sha256",
               "pins: the plugin's file, and its fallback's, has one of these SHA-256; empty: see "
               "plugins.trust"));
  if (table.name == "runtime" || table.name == "attention") return table;
  add(int_key("worker_deadline_ms", 1000, 1, kDeadlineMsMax,
              "a worker that takes longer for one call is ended and started again, ms"));
  add(int_key("worker_memory_mb", 0, 0, 16777216,
              "address space of the worker, MiB; below 256 hardly anything loads; 0: no limit"));
  add(int_key("worker_failures_max", kWorkerFailuresMax, 1, 1'000'000,
              "so many deaths and late answers within a minute, and it is not started again"));
  add(int_key("worker_backoff_ms", kWorkerBackoffMs, 0, kWorkerBackoffMsMax,
              "pause before a new start, doubled with each failure of the last minute, ms"));
  if (table.name == "quantizer") return table;
  add(text_key("fallback", "",
               "plugin of this kind that answers, in process, when the worker cannot; empty: the "
               "call fails"));
  return table;
}

constexpr double kTokensMax = 16777216;  // 2^24
constexpr double kMegabytesMax = 16777216;
constexpr double kSeedMax = 9007199254740992;  // 2^53, exact as a double

constexpr double kDaySeconds = 86400;

TableSpec server_table() {
  return {
      "server",
      "how varve serve listens",
      {text_key("host", "127.0.0.1", "address to listen on"),
       int_key("port", 8080, 0, 65535, "0: any free one, told in the log"),
       int_key("http_threads", 1, 1, 64, "threads that read and write connections"),
       text_key("keys_path", "",
                "file of API keys; empty: no keys, everybody is anonymous of the default class"),
       bool_key("allow_public_without_keys", false,
                "listen on an address that others reach although there are no keys"),
       text_key("default_class", "standard", "class of requests without a key"),
       list_key("allowed_hosts",
                "Host headers accepted beside loopback names and the address listened on"),
       int_key("body_mb_max", 16, 1, 1024, "largest request, MiB"),
       int_key("connections_max", 4096, 1, 1000000, "open at once"),
       float_key("header_timeout_s", 10, 0.001, kDaySeconds, "for a request's headers, s"),
       float_key("idle_timeout_s", 75, 0.001, kDaySeconds, "between two requests, s"),
       float_key("write_timeout_s", 30, 0.001, kDaySeconds, "a client that takes nothing, s"),
       float_key("shutdown_timeout_s", 30, 0, kDaySeconds,
                 "running requests may end in this time after SIGTERM, s"),
       float_key("ping_interval_s", 15, 0, kDaySeconds,
                 "sign of life in a stream that has nothing to say, s; 0: none"),
       int_key("choices_max", 8, 1, 1024, "n, and prompts of one request"),
       int_key("contexts_max", 64, 0, 1000000, "documents registered at once, per tenant"),
       int_key(
           "held_memory_percent", 50, 0, 100,
           "most of a stack's kv_budget_mb that registered documents and /mri contexts may hold"),
       choice_key("unknown_fields", "ignore", "ignore|warn|reject",
                  "what to do with a request's unknown fields"),
       choice_key("log_format", "auto", "auto|text|json", "auto: text on a terminal"),
       choice_key("log_level", "info", "debug|info|warning|error", "least urgent line logged"),
       text_key("experiment_log_path", "",
                "SQLite file of what experiments are judged by; empty: no experiments"),
       int_key("experiment_log_mb_max", 256, 1, kMegabytesMax,
               "a larger log is set aside and a new one begun, MiB")},
      false};
}

TableSpec class_table() {
  return {"class",
          "a class of requests: what its keys get",
          {text_key("stack", "main", "which stack answers; main: the one of this profile"),
           int_key("priority", 0, 0, 1000, "larger is served first"),
           int_key("max_prompt_tokens", 0, 0, kTokensMax, "longest prompt; 0: the stack's limit"),
           int_key("max_answer_tokens", 4096, 1, kTokensMax, "longest answer"),
           float_key("deadline_s", 0, 0, kDaySeconds,
                     "longest time a request may take, s; 0: no limit"),
           bool_key("yields_summaries_at_peak", false,
                    "left without summaries while its stack's queue is past peak_queue_percent")},
          false};
}

TableSpec stack_table() {
  return {"stack",
          "a stack beside main, and its lane; [stack.main] has the lane of main",
          {text_key("profile", "", "profile with the stack, relative to this one; of main: empty"),
           int_key("concurrency", 16, 1, 1024, "sequences running at once"),
           int_key("concurrency_max", 32, 1, 1024, "grows towards this while the queue is full"),
           int_key("queue_max", 0, 0, 100000,
                   "waiting requests; 0: the smaller of 200 and 3 x concurrency"),
           float_key("stall_max", 2.5, 1, 100,
                     "gap between tokens of running answers while a prompt is read, of that "
                     "without"),
           int_key("step_tokens_max", 4096, 1, 1048576, "tokens of one step"),
           int_key("step_ms_max", 100, 1, 60000, "longest step, ms, so that others get a turn"),
           int_key("peak_queue_percent", 0, 0, 100,
                   "summaries are left out while the queue is this full, %; 0: never")},
          false};
}

TableSpec experiment_table() {
  return {"experiment",
          "stacks compared on the requests of a class",
          {int_key("version", 1, 1, 1000000, "raise it when arms, salt, class or mode change"),
           text_key("class", "", "whose requests"),
           text_key("salt", "",
                    "key of the draw: secret, at least 16 characters, of one experiment only"),
           list_key("arms", "stack:percent, the control first; together 100"),
           choice_key("mode", "unit", "unit|switchback|aa",
                      "unit: conversations are split; switchback: time is; aa: as unit, with one "
                      "stack on both arms"),
           float_key("block_s", 300, 1, kDaySeconds, "switchback: time with one arm, s"),
           float_key("burn_in_s", 30, 0, kDaySeconds,
                     "switchback: time after a switch that does not count, s"),
           float_key("shadow_percent", 0, 0, 100,
                     "of the control's requests, computed again on the last arm to compare"),
           float_key("margin", 0.05, 0, 10, "tolerated relative loss of a latency quantile"),
           float_key("alpha", 0.01, 0.000001, 0.5, "probability of a false alarm"),
           float_key("error_rate_max", 0.02, 0, 1,
                     "an arm with this much more errors than the control is stopped"),
           float_key("kld_max", 0.01, 0, 100,
                     "an arm further than this from the exact stack is stopped, nat"),
           float_key("top1_min", 0.99, 0, 1,
                     "an arm that agrees less often than this with the exact stack is stopped"),
           int_key("min_units", 50, 1, 1000000000, "conversations before an arm may be stopped")},
          false};
}

TableSpec plugins_table() {
  return {
      "plugins",
      "where plugins are found",
      {list_key("directories",
                "folders searched in order; empty: lib/varve beside the program's folder"),
       text_key("worker_path", "",
                "program for plugins in a process of their own; empty: mri-worker beside this "
                "program"),
       text_key("crash_dir", "",
                "varve serve notes there which library crashed; empty: varve in XDG_STATE_HOME"),
       bool_key("allow_crashed", false, "load libraries that a crash was put down to"),
       choice_key("trust", "none", "none|hash|signature",
                  "what every plugin must have before it is loaded: hash: a pin in its table; "
                  "signature: one by a key of signers"),
       list_key("signers",
                "Ed25519 public keys, 64 hex digits each, as varve plugin sign prints "
                "them")},
      false};
}

std::vector<TableSpec> make_tables() {
  return {
      {"model",
       "the weights",
       {text_key("path", "${VARVE_MODEL}",
                 "GGUF file or safetensors folder; relative to the profile that names it"),
        text_key("tokenizer_path", "",
                 "GGUF file with the vocabulary; empty: the one that comes with the model"),
        text_key("name", "", "name in answers and logs; empty: the one in the model")},
       false},
      {"runtime",
       "the engine that runs the model",
       {plugin_key("light", "which engine"),
        int_key("threads", 0, 0, 1024, "CPU threads; 0: one per core of this process"),
        int_key("prefill_chunk_tokens", 4096, 32, 1048576,
                "tokens per prefill step; larger is faster and takes more memory while reading"),
        int_key("kv_budget_mb", 0, 0, kMegabytesMax,
                "memory for keys and values of a context, MiB; 0: no limit"),
        int_key("max_tokens", 0, 0, kTokensMax,
                "longest context, prompt and answer together; 0: what the runtime allows")},
       true},
      {"kv_tier",
       "which tokens are hot, warm or cold",
       {plugin_key("age", "which policy; none: the runtime does without")},
       true},
      {"quantizer",
       "how warm and cold tokens are encoded",
       {plugin_key("int8", "which encoding; none: the runtime does without")},
       true},
      {"attention",
       "which tokens a query reads",
       {plugin_key("hybrid", "which variant; none: the runtime does without")},
       true},
      {"summary",
       "what stands for cold tokens in attention",
       {plugin_key("clusters", "which encoder; none: cold tokens have no summary")},
       true},
      {"batching",
       "which requests the next step serves",
       {plugin_key("fcfs", "which policy; none: the runtime does without")},
       true},
      plugins_table(),
      {"generate",
       "how an answer is written",
       {int_key("max_tokens", 256, 1, kTokensMax, "longest answer, tokens"),
        float_key("temperature", 0, 0, 10, "0: always the likeliest token; above: more varied"),
        float_key(
            "top_p", 1, 0, 1,
            "draw among the likeliest tokens that together have this probability; 1: among all"),
        int_key("seed", 0, 0, kSeedMax, "same seed, same draw"),
        text_key("system_prompt",
                 "You answer questions about the document that the user gives. Answer briefly, "
                 "from the document.",
                 "first message of the chat; empty: none")},
       false},
      server_table(),
  };
}

const TableSpec* find_in(const std::vector<TableSpec>& tables, std::string_view name) {
  const auto it = std::find_if(tables.begin(), tables.end(),
                               [&](const TableSpec& t) { return t.name == name; });
  return it == tables.end() ? nullptr : &*it;
}

}  // namespace

const std::vector<TableSpec>& profile_tables() {
  static const auto* tables = [] {
    auto* made = new std::vector<TableSpec>(make_tables());
    for (TableSpec& table : *made) {
      if (table.has_plugin) table = with_isolation(std::move(table));
    }
    return made;
  }();
  return *tables;
}

const std::vector<TableSpec>& named_tables() {
  static const auto* tables =
      new std::vector<TableSpec>{class_table(), stack_table(), experiment_table()};
  return *tables;
}

bool is_table_name(std::string_view name) {
  const auto fits = [](unsigned char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= 32 &&
         absl::ascii_islower(static_cast<unsigned char>(name.front())) &&
         std::all_of(name.begin(), name.end(), fits);
}

const TableSpec* find_table(std::string_view name) { return find_in(profile_tables(), name); }

const TableSpec* find_named_table(std::string_view name) { return find_in(named_tables(), name); }

const KeySpec* find_key(const std::vector<KeySpec>& keys, std::string_view key) {
  const auto it =
      std::find_if(keys.begin(), keys.end(), [&](const KeySpec& k) { return k.key == key; });
  return it == keys.end() ? nullptr : &*it;
}

std::string environment_name(std::string_view table, std::string_view key) {
  return absl::AsciiStrToUpper(absl::StrCat("VARVE_", absl::string_view(table.data(), table.size()),
                                            "_", absl::string_view(key.data(), key.size())));
}

}  // namespace varve
