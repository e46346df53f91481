#include "core/route/dispatcher_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/config/keys.h"

namespace varve {
namespace {

using testing::HasSubstr;

// Table, key, value as TOML.
using Tables = std::map<std::string, std::map<std::string, std::string>>;

class ChangesTest : public testing::Test {
 protected:
  ChangesTest() {
    folder_ = testing::TempDir() + "changes-XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    std::ofstream(folder_ + "/other.toml") << "[attention]\nplugin = \"dense\"\n";
  }
  ~ChangesTest() override { std::filesystem::remove_all(folder_); }

  ServeConfig load(const Tables& tables) {
    std::string text;
    for (const auto& [table, keys] : tables) {
      absl::StrAppend(&text, "[", table, "]\n");
      for (const auto& [key, value] : keys) absl::StrAppend(&text, key, " = ", value, "\n");
    }
    const ProfileSources sources{folder_ + "/p.toml", {}, {}};
    const auto profile = Profile::parse(text, sources);
    EXPECT_TRUE(profile.ok()) << profile.status() << "\n" << text;
    if (!profile.ok()) return {};
    auto config = load_serve_config(*profile, sources);
    EXPECT_TRUE(config.ok()) << config.status() << "\n" << text;
    return config.ok() ? *std::move(config) : ServeConfig();
  }

  // What a reload says to it, whether it does it or not.
  std::string told(const Tables& from, const Tables& to) {
    const auto changes = config_changes(load(from), load(to), true);
    return changes.ok() ? absl::StrJoin(*changes, "\n") : std::string(changes.status().message());
  }

  std::string folder_;
};

// Another value for the key than its default.
std::string other_value(const KeySpec& spec) {
  switch (spec.type) {
    case ValueType::kBool:
      return to_text(!std::get<bool>(spec.default_value));
    case ValueType::kInt: {
      const int64_t next = std::get<int64_t>(spec.default_value) + 1;
      return to_text(static_cast<double>(next) <= spec.max ? next : next - 2);
    }
    case ValueType::kFloat: {
      const double next = std::get<double>(spec.default_value) + 1;
      return to_text(next <= spec.max ? next : spec.min);
    }
    case ValueType::kString:
      for (const absl::string_view choice : absl::StrSplit(spec.choices, '|')) {
        if (!choice.empty() && choice != std::get<std::string>(spec.default_value))
          return to_text(std::string(choice));
      }
      return "\"another.text\"";
    case ValueType::kStrings:
      break;
  }
  return "[\"another.text\"]";
}

TEST_F(ChangesTest, AReloadTellsEveryKeyThatThereIs) {
  const Tables base = {{"server", {{"experiment_log_path", "\"log.sqlite\""}}},
                       {"stack.other", {{"profile", "\"other.toml\""}}},
                       {"class.standard", {}},
                       {"class.vip", {}},
                       {"experiment.canary",
                        {{"class", "\"standard\""},
                         {"salt", "\"0123456789abcdef\""},
                         {"arms", "[\"main:50\", \"other:50\"]"}}}};
  const std::map<std::string, std::string> names = {
      {"server.host", "\"localhost\""},
      {"server.default_class", "\"vip\""},
      {"class.vip.stack", "\"other\""},
      {"experiment.canary.class", "\"vip\""},
      {"experiment.canary.salt", "\"fedcba9876543210\""},
      {"experiment.canary.arms", "[\"main:60\", \"other:40\"]"}};
  std::vector<std::pair<std::string, const TableSpec*>> tables = {{"server", find_table("server")}};
  for (const TableSpec& spec : named_tables()) {
    for (const auto& [table, keys] : base) {
      if (table == spec.name + ".other" || table == spec.name + ".vip" ||
          table == spec.name + ".canary")
        tables.emplace_back(table, &spec);
    }
  }
  ASSERT_EQ(tables.size(), 1 + named_tables().size());
  for (const auto& [table, spec] : tables) {
    for (const KeySpec& key : spec->keys) {
      const std::string name = absl::StrCat(table, ".", key.key);
      if (name == "stack.other.profile") continue;  // what the file says is compared
      Tables changed = base;
      const auto special = names.find(name);
      changed[table][key.key] = special != names.end() ? special->second : other_value(key);
      EXPECT_THAT(told(base, changed), HasSubstr(absl::StrCat(name, ": ")));
    }
  }
  EXPECT_EQ(told(base, base), "");
}

}  // namespace
}  // namespace varve
