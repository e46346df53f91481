#include "core/config/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/config/nearest_name.h"
#include "core/config/options.h"

namespace varve {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

KeySpec described(const char* key, uint32_t type, double min, double max,
                  const char* choices = nullptr) {
  const mri_param_desc desc{key, "help", choices, "ram", type, 0, 1, min, max, 0};
  return *KeySpec::from_plugin(desc);
}

std::vector<KeySpec> hybrid() {
  return {described("window_tokens", MRI_PARAM_INT, 0, 4096),
          described("summary_weight", MRI_PARAM_FLOAT, 0, 1),
          described("backing", MRI_PARAM_STRING, 0, 0, "none|ram|file"),
          described("tight", MRI_PARAM_BOOL, 0, 1)};
}

absl::StatusOr<Profile> parse(std::string_view text, std::vector<std::string> overrides = {},
                              std::vector<std::pair<std::string, std::string>> environment = {}) {
  return Profile::parse(text, {"p.toml", std::move(environment), std::move(overrides)});
}

std::string error_of(std::string_view text) {
  const auto profile = parse(text);
  return profile.ok() ? "no error" : std::string(profile.status().message());
}

std::string plugin_error_of(std::string_view text, std::vector<std::string> overrides = {}) {
  const auto profile = parse(text, std::move(overrides));
  if (!profile.ok()) return std::string(profile.status().message());
  const auto values = profile->plugin_values("attention", hybrid());
  return values.ok() ? "no error" : std::string(values.status().message());
}

TEST(Profile, EmptyFileGivesEveryDefault) {
  const auto profile = parse("");
  ASSERT_TRUE(profile.ok());
  for (const TableSpec& table : profile_tables()) {
    for (const KeySpec& key : table.keys) {
      ASSERT_NE(profile->find(table.name, key.key), nullptr) << table.name << "." << key.key;
      EXPECT_EQ(profile->find(table.name, key.key)->value, key.default_value);
      EXPECT_TRUE(checked_value(key, key.default_value).ok()) << table.name << "." << key.key;
    }
  }
  EXPECT_EQ(runtime_options(*profile).prefill_chunk_tokens, 4096u);
  EXPECT_EQ(generate_options(*profile).max_tokens, 256u);
}

TEST(Profile, CommandLineBeatsEnvironmentBeatsFileBeatsDefault) {
  const char* file = "[generate]\nmax_tokens = 2\nseed = 2\ntop_p = 0.5\n";
  const auto profile = parse(
      file, {"generate.max_tokens=4", "generate.max_tokens=5"},
      {{"VARVE_GENERATE_MAX_TOKENS", "3"}, {"VARVE_GENERATE_SEED", "3"}, {"VARVE_PREFIX", "x"}});
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->integer("generate", "max_tokens"), 5);
  EXPECT_EQ(profile->integer("generate", "seed"), 3);
  EXPECT_EQ(profile->number("generate", "top_p"), 0.5);
  EXPECT_EQ(profile->number("generate", "temperature"), 0.0);
  EXPECT_EQ(profile->find("generate", "max_tokens")->where, "--set \"generate.max_tokens=5\"");
  EXPECT_EQ(profile->find("generate", "seed")->where, "environment variable VARVE_GENERATE_SEED");
  EXPECT_EQ(profile->find("generate", "top_p")->where, "p.toml:4:1");
  EXPECT_EQ(profile->find("generate", "temperature")->where, "default");
}

TEST(Profile, SaysWhatWasFoundAndExpectedAndWhere) {
  EXPECT_EQ(error_of("[generate]\nmax_tokns = 3\n"),
            "p.toml:2:1: found unknown key \"generate.max_tokns\"; expected a key of [generate]; "
            "did you mean \"max_tokens\"?");
  EXPECT_EQ(error_of("\n[atention]\n"),
            "p.toml:2:2: found unknown table \"atention\"; expected a table of configs/varve.toml; "
            "did you mean \"attention\"?");
  EXPECT_EQ(error_of("[runtime]\nthreads = \"many\"\n"),
            "p.toml:2:1: runtime.threads: found the string \"many\"; expected an integer from 0 "
            "to 1024");
  EXPECT_EQ(
      error_of("[runtime]\nthreads = 2000\n"),
      "p.toml:2:1: runtime.threads: found the integer 2000; expected an integer from 0 to 1024");
  EXPECT_EQ(
      error_of("[generate]\ntop_p = nan\n"),
      "p.toml:2:1: generate.top_p: found the decimal number nan; expected a number from 0 to 1");
  EXPECT_THAT(error_of("[runtime\n"),
              StartsWith("p.toml:1:9: found a syntax error; expected TOML: "));
  EXPECT_THAT(error_of("threads = 3\n"),
              StartsWith("p.toml:1:1: found key \"threads\" outside a table"));
  EXPECT_THAT(error_of("[generate]\nseed = 2024-01-01\n"), HasSubstr("found a date or time"));
  EXPECT_THAT(error_of("[attention]\nlist = [1, 2]\n"),
              HasSubstr("found an array that holds more than strings"));
}

TEST(Profile, NamesTheFirstErrorByPositionAndCountsTheOthers) {
  EXPECT_THAT(
      error_of("[runtime]\nthreads = -1\n[generate]\nseed = -1\n[zzzzzz]\n"),
      testing::AllOf(StartsWith("p.toml:2:1: "), testing::EndsWith(" (and 2 more errors)")));
}

TEST(Profile, EscapesHostileNames) {
  EXPECT_THAT(error_of("[\"a\\n\\u001b[31m\"]\n"), HasSubstr(R"("a\n\033[31m")"));
  EXPECT_EQ(error_of("[quantizer]\nsmoothing = fal\nx = 1\n").find('\n'), std::string::npos);
  const std::string longest(100000, 'x');
  EXPECT_LT(error_of("[" + longest + "]\n").size(), 400u);
}

TEST(Profile, RefusesBadOverridesAndEnvironment) {
  for (const char* bad :
       {"", "threads", "threads=3", "runtime.threads", "=.", ".=", "nothing.here=1", "runtime.=1",
        "runtime.threads=", "runtime.threads=1x", "generate.top_p=nan", "generate.seed=-1"}) {
    EXPECT_FALSE(parse("", {bad}).ok()) << bad;
  }
  EXPECT_FALSE(parse("", {}, {{"VARVE_RUNTIME_THREADS", "x"}}).ok());
  EXPECT_FALSE(parse("", {}, {{"VARVE_GENERATE_NOTHING", "1"}}).ok());
  EXPECT_TRUE(parse("", {}, {{"VARVE_MODEL", "x"}, {"VARVE_", "x"}, {"VARVE_CACHE", "x"}}).ok());
}

TEST(Profile, UnreadableFileIsAnError) {
  const auto missing = Profile::load({"/nowhere/p.toml", {}, {}});
  EXPECT_THAT(std::string(missing.status().message()),
              HasSubstr("/nowhere/p.toml: found no readable file"));
  EXPECT_FALSE(Profile::load({"/", {}, {}}).ok());
  EXPECT_FALSE(Profile::load({"/dev/zero", {}, {}}).ok());
}

TEST(PluginValues, FillsDefaultsAndTypes) {
  const auto profile = parse("[attention]\nsummary_weight = 1\n",
                             {"attention.window_tokens=7", "attention.tight=false"});
  ASSERT_TRUE(profile.ok()) << profile.status();
  const auto values = profile->plugin_values("attention", hybrid());
  ASSERT_TRUE(values.ok()) << values.status();
  ASSERT_EQ(values->size(), 4u);
  EXPECT_EQ((*values)[0].second.value, Value(int64_t{7}));
  EXPECT_EQ((*values)[1].second.value, Value(1.0));
  EXPECT_EQ((*values)[2].second.value, Value(std::string("ram")));
  EXPECT_EQ((*values)[3].second.value, Value(false));
}

TEST(PluginValues, RefusesWhatThePluginDoesNotKnow) {
  EXPECT_EQ(plugin_error_of("[attention]\nwindow_token = 1\n"),
            "p.toml:2:1: found unknown key \"attention.window_token\"; expected a parameter of "
            "the attention plugin "
            "\"hybrid\"; did you mean \"window_tokens\"?");
  EXPECT_EQ(
      plugin_error_of("[attention]\nbacking = \"disk\"\n"),
      "p.toml:2:1: attention.backing: found the string \"disk\"; expected one of none, ram, file");
  EXPECT_EQ(plugin_error_of("", {"attention.window_tokens=-1"}),
            "--set \"attention.window_tokens=-1\": attention.window_tokens: found \"-1\"; expected "
            "an integer from 0 to 4096");
}

TEST(PluginValues, SuggestsHostKeysToo) {
  EXPECT_THAT(plugin_error_of("[attention]\nplugim = \"x\"\n"),
              HasSubstr("did you mean \"plugin\"?"));
}

TEST(PluginValues, DropsValuesWrittenForAReplacedPlugin) {
  const char* file = "[attention]\nplugin = \"other\"\nfar = 1\nwindow_tokens = 9\n";
  EXPECT_THAT(plugin_error_of(file), HasSubstr("\"attention.far\""));
  EXPECT_EQ(plugin_error_of(file, {"attention.plugin=hybrid"}), "no error");
  EXPECT_THAT(plugin_error_of(file, {"attention.plugin=other"}), HasSubstr("\"attention.far\""));
  EXPECT_THAT(plugin_error_of(file, {"attention.plugin=hybrid", "attention.near=1"}),
              HasSubstr("\"attention.near\""));
}

TEST(PluginValues, PassesTheModelToTheRuntime) {
  const auto profile = parse("[model]\npath = \"/m.gguf\"\n[runtime]\nthreads = 3\n");
  ASSERT_TRUE(profile.ok());
  const auto values = profile->plugin_values(
      "runtime",
      {described("model_path", MRI_PARAM_STRING, 0, 0), described("threads", MRI_PARAM_INT, 0, 9)});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ((*values)[0].second.value, Value(std::string("/m.gguf")));
  EXPECT_EQ((*values)[1].second.value, Value(int64_t{3}));
}

TEST(PluginValues, SurvivesADefectiveDescription) {
  mri_param_desc desc{};
  EXPECT_FALSE(KeySpec::from_plugin(desc).ok());
  desc = {"k", nullptr, nullptr, nullptr, 9, 0, 0, 0, 0, 0};
  EXPECT_FALSE(KeySpec::from_plugin(desc).ok());
  desc = {"k", nullptr, nullptr, nullptr, MRI_PARAM_INT, 0, 1e300, 0, 0, 0};
  EXPECT_FALSE(KeySpec::from_plugin(desc).ok());
}

TEST(Paths, AreRelativeToTheProfileAndExpand) {
  setenv("VARVE_TEST_FOLDER", "/weights", 1);
  const auto path_of = [](const char* line, std::vector<std::string> overrides = {}) {
    const auto profile = Profile::parse(line, {"/etc/varve/p.toml", {}, std::move(overrides)});
    const auto path = profile->path("model", "path");
    return path.ok() ? *path : std::string(path.status().message());
  };
  EXPECT_EQ(path_of("model.path = \"a.gguf\""), "/etc/varve/a.gguf");
  EXPECT_EQ(path_of("model.path = \"/a.gguf\""), "/a.gguf");
  EXPECT_EQ(path_of("model.path = \"${VARVE_TEST_FOLDER}/a.gguf\""), "/weights/a.gguf");
  EXPECT_EQ(path_of("", {"model.path=a.gguf"}), "a.gguf");
  EXPECT_THAT(path_of("model.path = \"${VARVE_TEST_UNSET}\""),
              HasSubstr("\"VARVE_TEST_UNSET\" to be set"));
  EXPECT_THAT(path_of("model.path = \"${oops\""), HasSubstr("expected a }"));
  unsetenv("VARVE_MODEL");
  EXPECT_EQ(path_of(""), "");
}

TEST(Paths, OfPluginsComeAsAList) {
  const auto profile =
      Profile::parse("[plugins]\ndirectories = [\"a\", \"/b\"]", {"x/p.toml", {}, {}});
  EXPECT_THAT(*profile->plugin_directories(), testing::ElementsAre("x/a", "/b"));
  const auto overridden = Profile::parse("", {"", {}, {"plugins.directories=c:/d"}});
  EXPECT_THAT(*overridden->plugin_directories(), testing::ElementsAre("c", "/d"));
}

TEST(NearestName, FindsTypingMistakesOnly) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(nearest_name("hot_token", {"warm_tokens", "hot_tokens"}), "hot_tokens");
  EXPECT_EQ(nearest_name("zebra", {"warm_tokens", "hot_tokens"}), "");
}

}  // namespace
}  // namespace varve
