#include "core/config/serve_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace varve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// A folder with p.toml and other.toml; the latter is a stack of its own.
class ServeConfigTest : public testing::Test {
 protected:
  ServeConfigTest() {
    folder_ = testing::TempDir() + "serve-XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    std::ofstream(folder_ + "/other.toml") << "[attention]\nplugin = \"dense\"\n"
                                              "[stack.deeper]\nprofile = \"nowhere.toml\"\n";
  }
  ~ServeConfigTest() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<ServeConfig> load(
      const std::string& text, std::vector<std::string> overrides = {},
      std::vector<std::pair<std::string, std::string>> variables = {}) {
    const ProfileSources sources{folder_ + "/p.toml", std::move(variables), std::move(overrides)};
    const auto profile = Profile::parse(text, sources);
    if (!profile.ok()) return profile.status();
    return load_serve_config(*profile, sources);
  }
  // Without the folder.
  std::string error_of(const std::string& text, std::vector<std::string> overrides = {},
                       std::vector<std::pair<std::string, std::string>> variables = {}) {
    const auto config = load(text, std::move(overrides), std::move(variables));
    if (config.ok()) return "no error";
    std::string message(config.status().message());
    for (size_t at = 0; (at = message.find(folder_ + "/")) != std::string::npos;)
      message.erase(at, folder_.size() + 1);
    return message;
  }

  std::string folder_;
};

constexpr char kTwoStacks[] =
    "[stack.exact]\n"
    "profile = \"other.toml\"\n"
    "[class.standard]\n"
    "[class.vip]\n"
    "stack = \"exact\"\n"
    "priority = 10\n"
    "deadline_s = 1.5\n"
    "[server]\n"
    "experiment_log_path = \"log.sqlite\"\n";

constexpr char kExperiment[] =
    "[experiment.canary]\n"
    "class = \"standard\"\n"
    "salt = \"0123456789abcdef\"\n"
    "arms = [\"main:95\", \"exact:5\"]\n";

TEST_F(ServeConfigTest, NothingMeansOneClassOnMain) {
  const auto config = load("");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->classes.size(), 1u);
  EXPECT_EQ(config->classes[0].name, "standard");
  EXPECT_EQ(config->classes[0].stack, "main");
  EXPECT_EQ(config->classes[0].deadline, absl::InfiniteDuration());
  ASSERT_EQ(config->stacks.size(), 1u);
  EXPECT_EQ(config->stacks[0].name, "main");
  EXPECT_EQ(config->server.port, 8080);
  EXPECT_EQ(config->server.ping_interval, absl::Seconds(15));
  EXPECT_EQ(config->server.keys_path, "");
  EXPECT_TRUE(config->experiments.empty());
}

TEST_F(ServeConfigTest, ReadsClassesStacksAndExperiments) {
  const auto config = load(std::string(kTwoStacks) + kExperiment +
                           "mode = \"switchback\"\nblock_s = 60\n[stack.main]\nconcurrency = 40\n");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->stacks.size(), 2u);
  EXPECT_EQ(config->stacks[0].name, "main");
  EXPECT_EQ(config->stacks[0].concurrency, 40u);
  EXPECT_EQ(config->stacks[0].concurrency_max, 40u);
  EXPECT_EQ(config->stacks[0].profile.text("attention", "plugin"), "hybrid");
  EXPECT_EQ(config->stacks[1].name, "exact");
  EXPECT_EQ(config->stacks[1].profile.text("attention", "plugin"), "dense");
  ASSERT_EQ(config->classes.size(), 2u);
  EXPECT_EQ(config->classes[1].stack, "exact");
  EXPECT_EQ(config->classes[1].priority, 10u);
  EXPECT_EQ(config->classes[1].deadline, absl::Milliseconds(1500));
  EXPECT_EQ(config->server.experiment_log_path, folder_ + "/log.sqlite");
  ASSERT_EQ(config->experiments.size(), 1u);
  EXPECT_EQ(config->experiments[0].block, absl::Minutes(1));
  ASSERT_EQ(config->experiments[0].arms.size(), 2u);
  EXPECT_EQ(config->experiments[0].arms[1].stack, "exact");
  EXPECT_EQ(config->experiments[0].arms[1].weight, 5);
}

TEST_F(ServeConfigTest, CommandLineAndEnvironmentReachNamedTables) {
  const auto config = load(
      std::string(kTwoStacks) + kExperiment,
      {"class.vip.priority=20", "experiment.canary.arms=main:80:exact:20", "class.new.priority=3"},
      {{"VARVE_SERVER_PORT", "99"},
       {"VARVE_CLASS_VIP_PRIORITY", "7"},
       {"VARVE_CLASS_VIP_MAX_PROMPT_TOKENS", "8"}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->server.port, 99);
  ASSERT_EQ(config->classes.size(), 3u);
  EXPECT_EQ(config->classes[0].name, "new");
  EXPECT_EQ(config->classes[2].priority, 20u);
  EXPECT_EQ(config->classes[2].max_prompt_tokens, 8u);
  EXPECT_EQ(config->experiments[0].arms[1].weight, 20);
}

TEST_F(ServeConfigTest, EnvironmentOfNamedTablesIsNeverGuessed) {
  EXPECT_THAT(error_of(kTwoStacks, {}, {{"VARVE_CLASS_VPI_PRIORITY", "7"}}),
              StartsWith("environment variable VARVE_CLASS_VPI_PRIORITY: found no such key"));
  EXPECT_THAT(error_of("[class.a-b]\n[class.a_b]\n", {}, {{"VARVE_CLASS_A_B_STACK", "main"}}),
              HasSubstr("found two meanings, [class.a-b] and [class.a_b]"));
  EXPECT_THAT(error_of(kTwoStacks, {}, {{"VARVE_CLASS_VIP_PRIORITY", "x"}}),
              HasSubstr("class.vip.priority: found \"x\"; expected an integer"));
}

TEST_F(ServeConfigTest, NamedTablesAreCheckedLikeOthers) {
  EXPECT_EQ(
      error_of("[class.vip]\npriorty = 1\n"),
      "p.toml:2:1: found unknown key \"class.vip.priorty\"; expected a key of [class.vip]; did "
      "you mean \"priority\"?");
  EXPECT_THAT(error_of("[clas.vip]\n"), HasSubstr("did you mean \"class\"?"));
  EXPECT_THAT(error_of("[class.Vip]\n"), StartsWith("p.toml:1:8: found the name \"Vip\""));
  EXPECT_THAT(error_of("[class.\"\"]\n"), HasSubstr("found the name \"\""));
  EXPECT_THAT(error_of("[class." + std::string(33, 'a') + "]\n"), HasSubstr("found the name"));
  EXPECT_THAT(error_of("[class]\nvip = 1\n"), HasSubstr("[class.NAME]"));
  EXPECT_THAT(error_of("class = 1\n"), HasSubstr("outside a table"));
  EXPECT_THAT(error_of("[class.vip.deep]\n"), HasSubstr("unknown key \"class.vip.deep\""));
  EXPECT_THAT(error_of("[class.vip]\npriority = [1]\n"), HasSubstr("p.toml:2:1: "));
  for (const char* bad :
       {"class.vip=1", "class.=1", "class.vip.=1", "class..priority=1", "class.Vip.priority=1",
        "class.vip.priorty=1", "server.prot=1", "class.vip.priority=", "class.=.="}) {
    EXPECT_NE(error_of("", {bad}), "no error") << bad;
  }
}

TEST_F(ServeConfigTest, NamesWhatIsUnknownAndWhere) {
  EXPECT_EQ(
      error_of("[stack.exact]\nprofile = \"other.toml\"\n[class.standard]\nstack = \"exakt\"\n"),
      "p.toml:4:1: class.standard.stack: found \"exakt\"; expected a stack of this profile: "
      "main, exact; did you mean \"exact\"?");
  EXPECT_EQ(error_of("[class.vip]\n"),
            "default: server.default_class: found \"standard\"; expected a class of this profile: "
            "vip");
  EXPECT_EQ(
      error_of("[class.vip]\n[server]\ndefault_class = \"vp\"\n"),
      "p.toml:3:1: server.default_class: found \"vp\"; expected a class of this profile: vip; "
      "did you mean \"vip\"?");
}

TEST_F(ServeConfigTest, APublicAddressNeedsKeys) {
  EXPECT_THAT(error_of("[server]\nhost = \"0.0.0.0\"\n"),
              StartsWith("p.toml:2:1: server.host: found \"0.0.0.0\", which others reach"));
  for (const char* host : {"::", "10.0.0.1", "example.org", "127.0.0.1.example.org", "", "127.1.1"})
    EXPECT_NE(error_of("[server]\nhost = \"" + std::string(host) + "\"\n"), "no error") << host;
  for (const char* host : {"127.0.0.1", "127.9.9.9", "::1", "localhost"})
    EXPECT_EQ(error_of("[server]\nhost = \"" + std::string(host) + "\"\n"), "no error") << host;
  EXPECT_EQ(error_of("[server]\nhost = \"0.0.0.0\"\nallow_public_without_keys = true\n"),
            "no error");
  EXPECT_EQ(error_of("[server]\nhost = \"0.0.0.0\"\nkeys_path = \"keys.toml\"\n"), "no error");
}

TEST_F(ServeConfigTest, StacksNeedAProfileThatLoads) {
  EXPECT_THAT(error_of("[stack.a]\n"), HasSubstr("[stack.a]: found no profile"));
  EXPECT_THAT(error_of("[stack.a]\nprofile = \"nowhere.toml\"\n"),
              StartsWith("p.toml:2:1: stack.a.profile: nowhere.toml: found no readable file"));
  EXPECT_THAT(error_of("[stack.main]\nprofile = \"other.toml\"\n"),
              HasSubstr("main is the stack of this profile"));
  EXPECT_THAT(error_of("[stack.main]\nconcurrency = 10\nconcurrency_max = 5\n"),
              StartsWith("p.toml:3:1: stack.main.concurrency_max: found 5"));
  std::ofstream(folder_ + "/bad.toml") << "[attention]\nplugin = 1\n";
  EXPECT_THAT(error_of("[stack.a]\nprofile = \"bad.toml\"\n"),
              StartsWith("p.toml:2:1: stack.a.profile: bad.toml:2:1: attention.plugin"));
}

TEST_F(ServeConfigTest, OtherStacksGetModelAndPluginFoldersOnly) {
  const std::vector<std::pair<std::string, std::string>> variables = {
      {"VARVE_MODEL_NAME", "mine"}, {"VARVE_ATTENTION_PLUGIN", "chosen"}};
  const auto config = load(
      "[plugins]\ndirectories = [\"mine\"]\n[model]\npath = \"m.gguf\"\n[stack.exact]\nprofile = "
      "\"other.toml\"\n",
      {"model.tokenizer_path=/t.gguf", "attention.plugin=chosen"}, variables);
  ASSERT_TRUE(config.ok()) << config.status();
  const Profile& exact = config->stacks[1].profile;
  EXPECT_EQ(exact.text("attention", "plugin"), "dense");
  EXPECT_EQ(exact.text("model", "name"), "mine");
  EXPECT_EQ(*exact.path("model", "tokenizer_path"), "/t.gguf");
  EXPECT_EQ(*exact.path("model", "path"), folder_ + "/m.gguf");
  EXPECT_THAT(*exact.plugin_directories(), ElementsAre(folder_ + "/mine"));
  std::filesystem::create_directory(folder_ + "/sub");
  std::ofstream(folder_ + "/sub/own.toml") << "[model]\npath = \"own.gguf\"\n";
  const auto own = load("[model]\npath = \"m.gguf\"\n[stack.a]\nprofile = \"sub/own.toml\"\n");
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(*own->stacks[1].profile.path("model", "path"), folder_ + "/sub/own.gguf");
}

TEST_F(ServeConfigTest, ChecksExperiments) {
  const std::string base = kTwoStacks;
  EXPECT_EQ(error_of(base + kExperiment), "no error");
  const auto with = [&](const std::string& key, const std::string& value) {
    return error_of(base + kExperiment, {"experiment.canary." + key + "=" + value});
  };
  EXPECT_THAT(with("arms", "main:95:exact:6"), HasSubstr("weights that sum to 101, not 100"));
  EXPECT_THAT(with("arms", "main:95:exat:5"), HasSubstr("did you mean \"exact\"?"));
  EXPECT_THAT(with("arms", "main:100"), HasSubstr("found 1 arms"));
  EXPECT_THAT(with("arms", ""), HasSubstr("arms"));
  EXPECT_THAT(with("arms", "main:95:exact"), HasSubstr("no per cent from 0 to 100 for \"exact\""));
  for (const char* weight : {"nan", "inf", "-5", "105", "x", "1e400"})
    EXPECT_THAT(with("arms", std::string("main:95:exact:") + weight), HasSubstr("no per cent"));
  EXPECT_THAT(with("arms", "main:50:main:50"), HasSubstr("twice, which only mode aa has"));
  EXPECT_THAT(with("arms", "exact:50:main:50"), HasSubstr("expected the stack of class standard"));
  EXPECT_THAT(with("mode", "aa"), HasSubstr("two stacks with mode aa"));
  EXPECT_THAT(with("class", "stanard"), HasSubstr("did you mean \"standard\"?"));
  EXPECT_THAT(with("salt", "short"), HasSubstr("5 characters"));
  EXPECT_EQ(error_of(base + kExperiment,
                     {"experiment.canary.mode=aa", "experiment.canary.arms=main:50:main:50"}),
            "no error");
  EXPECT_THAT(error_of(base + kExperiment,
                       {"experiment.canary.mode=switchback", "experiment.canary.block_s=30"}),
              HasSubstr("burn_in_s: found block_s or more"));
  EXPECT_THAT(error_of(base + kExperiment, {"server.experiment_log_path="}),
              HasSubstr("found no server.experiment_log_path"));
}

TEST_F(ServeConfigTest, ExperimentsShareNeitherSaltNorClass) {
  const std::string more = std::string(kTwoStacks) + kExperiment + "[experiment.more]\n";
  EXPECT_THAT(error_of(more + "class = \"vip\"\nsalt = \"0123456789abcdef\"\narms = [\"exact:50\", "
                              "\"main:50\"]\n"),
              HasSubstr("found the salt of [experiment.canary]"));
  EXPECT_THAT(error_of(more + "class = \"standard\"\nsalt = \"fedcba9876543210\"\narms = "
                              "[\"main:50\", \"exact:50\"]\n"),
              HasSubstr("which [experiment.canary] has"));
}

TEST_F(ServeConfigTest, CountsAllMistakes) {
  EXPECT_THAT(error_of("[server]\nhost = \"0.0.0.0\"\n[class.standard]\nstack = \"a\"\n"),
              testing::EndsWith("(and 1 more error)"));
}

TEST(NamedTables, AreListed) {
  const auto profile = Profile::parse("[class.b]\n[class.a]\n[stack.main]\n", {"p.toml", {}, {}});
  ASSERT_TRUE(profile.ok());
  EXPECT_THAT(profile->names("class"), ElementsAre("a", "b"));
  EXPECT_THAT(profile->names("stack"), ElementsAre("main"));
  EXPECT_TRUE(profile->names("experiment").empty());
  for (const TableSpec& family : named_tables()) {
    for (const KeySpec& key : family.keys)
      EXPECT_TRUE(checked_value(key, key.default_value).ok()) << family.name << "." << key.key;
  }
}

}  // namespace
}  // namespace varve
