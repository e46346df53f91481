#include "core/config/keys.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

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

// "none" leaves a kind out, except the runtime.
KeySpec plugin_key(const char* default_value, const char* help) {
  return text_key("plugin", default_value, help);
}

constexpr double kTokensMax = 16777216;  // 2^24
constexpr double kMegabytesMax = 16777216;
constexpr double kSeedMax = 9007199254740992;  // 2^53, exact as a double

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
      {"plugins",
       "where plugins are found",
       {{"directories", "folders searched in order; empty: lib/varve beside the program's folder",
         "", ValueType::kStrings, Value(std::vector<std::string>{}), 0, 0}},
       false},
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
  };
}

}  // namespace

const std::vector<TableSpec>& profile_tables() {
  static const auto* tables = new std::vector<TableSpec>(make_tables());
  return *tables;
}

const TableSpec* find_table(std::string_view name) {
  const auto& tables = profile_tables();
  const auto it = std::find_if(tables.begin(), tables.end(),
                               [&](const TableSpec& t) { return t.name == name; });
  return it == tables.end() ? nullptr : &*it;
}

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
