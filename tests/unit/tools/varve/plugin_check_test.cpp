#include "tools/varve/plugin_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

namespace varve::cli {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

std::string file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

bool lacks_nothing(const std::string&, const std::string&) { return false; }

PluginCheck check_file(const std::string& folder, const std::string& name,
                       const SystemLacks& lacks = lacks_nothing) {
  const std::string path = folder + "/" + name;
  return check_plugin(path, file_bytes(path), lacks);
}
PluginCheck check_bad(const std::string& name) {
  return check_file(BAD_PLUGINS, "quantizer-" + name + ".so");
}
PluginCheck check_flawed(const std::string& name) {
  return check_file(FLAWED_PLUGINS, "quantizer-" + name + ".so");
}

std::vector<std::string> rules(const PluginCheck& check) {
  std::vector<std::string> rules;
  for (const Finding& finding : check.findings) rules.push_back(finding.rule);
  return rules;
}

auto finding(const std::string& rule, Severity severity, const std::string& found) {
  return AllOf(Field(&Finding::rule, rule), Field(&Finding::severity, severity),
               Field(&Finding::found, HasSubstr(found)));
}

TEST(PluginCheck, TellsWhatASoundPluginIs) {
  const PluginCheck check = check_flawed("none");
  EXPECT_THAT(rules(check), IsEmpty()) << check.findings[0].found;
  EXPECT_EQ(check.kind, "quantizer");
  EXPECT_EQ(check.id, "org.example.bad");
  EXPECT_EQ(check.version, "1.0.0");
  EXPECT_EQ(check.build_id.size(), 40u);
  EXPECT_EQ(check.count(Severity::kError), 0u);
}

// One flaw of the build each, in tests/unit/tools/varve/CMakeLists.txt.
TEST(PluginCheck, NamesEachFlawOfTheBuild) {
  constexpr Severity kError = Severity::kError, kWarning = Severity::kWarning;
  EXPECT_THAT(check_bad("two_symbols").findings,
              Contains(finding("MRI-L002", kError, "symbols beside the entry")));
  EXPECT_THAT(check_flawed("threads").findings,
              ElementsAre(finding("MRI-L006", kWarning, "libgomp.so.1")));
  EXPECT_THAT(check_flawed("private").findings,
              ElementsAre(finding("MRI-L005", kWarning, "libprivate.so.1")));
  EXPECT_THAT(check_flawed("unique").findings,
              Contains(finding("MRI-L008", kError, "shared_counter")));
  EXPECT_THAT(check_flawed("tls").findings, ElementsAre(finding("MRI-L009", kError, "static")));
  EXPECT_THAT(check_flawed("rpath").findings,
              ElementsAre(finding("MRI-L010", kError, "/somewhere")));
  EXPECT_THAT(check_flawed("origin").findings,
              ElementsAre(finding("MRI-L010", Severity::kInfo, "$ORIGIN/deps")));
  EXPECT_THAT(check_flawed("no_id").findings, ElementsAre(finding("MRI-L011", kWarning, "id")));
  EXPECT_THAT(check_flawed("stack").findings, ElementsAre(finding("MRI-L012", kError, "stack")));
  EXPECT_THAT(rules(check_flawed("lazy")), ElementsAre("MRI-L014", "MRI-L014"));
  EXPECT_THAT(check_flawed("undefined").findings,
              ElementsAre(finding("MRI-L015", kError, "nobody_has_this")));
  EXPECT_THAT(check_flawed("constructor").findings,
              ElementsAre(finding("MRI-L017", Severity::kInfo, "(1)")));
  EXPECT_THAT(check_flawed("process").findings,
              ElementsAre(finding("MRI-L018", kWarning, "setlocale")));
}

TEST(PluginCheck, NamesLibrariesThatAreTooOld) {
  const auto lacks = [](const std::string& library, const std::string&) {
    return library == "libc.so.6";
  };
  EXPECT_THAT(check_file(FLAWED_PLUGINS, "quantizer-process.so", lacks).findings,
              Contains(finding("MRI-L016", Severity::kError, "of libc.so.6")));
}

// What the loader says after loading, from the file alone.
TEST(PluginCheck, ReadsTheEntry) {
  EXPECT_THAT(rules(check_bad("wrong_magic")), Contains("MRI-E006"));
  EXPECT_THAT(rules(check_bad("short_struct")), Contains("MRI-E007"));
  EXPECT_THAT(rules(check_bad("unknown_kind")), Contains("MRI-E008"));
  EXPECT_THAT(rules(check_bad("null_open")), Contains("MRI-E009"));
  EXPECT_THAT(rules(check_bad("min_above_max")), Contains("MRI-E011"));
  EXPECT_THAT(rules(check_bad("major_2")), Contains("MRI-E012"));
  EXPECT_THAT(rules(check_bad("bad_id")), Contains("MRI-E013"));
  EXPECT_THAT(rules(check_bad("bad_params")), Contains("MRI-E014"));
  EXPECT_THAT(rules(check_bad("major_2_entry")), Contains("MRI-L003"));
  for (const Finding& finding : check_bad("wrong_magic").findings) {
    EXPECT_FALSE(finding.fix.empty()) << finding.found;
  }
}

TEST(PluginCheck, WantsTheFileNameOfItsKind) {
  const std::string bytes = file_bytes(std::string(FLAWED_PLUGINS) + "/quantizer-none.so");
  EXPECT_THAT(rules(check_plugin("/p/libmine.so", bytes, lacks_nothing)), ElementsAre("MRI-L019"));
}

TEST(PluginCheck, RefusesWhatIsNoLibrary) {
  EXPECT_THAT(rules(check_plugin("x", "", lacks_nothing)), ElementsAre("MRI-L001"));
  EXPECT_THAT(rules(check_plugin("x", "\177ELF", lacks_nothing)), ElementsAre("MRI-L001"));
}

// For the sanitizers: whatever the bytes say, nothing outside the file is read.
TEST(PluginCheck, SurvivesDamagedFiles) {
  const std::string whole = file_bytes(std::string(FLAWED_PLUGINS) + "/quantizer-none.so");
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = whole.substr(0, round % 2 ? whole.size() : random() % whole.size());
    for (int change = 0; change < 8 && !bytes.empty(); ++change) {
      const size_t range = random() % 2 ? bytes.size() : std::min<size_t>(bytes.size(), 1024);
      bytes[random() % range] = static_cast<char>(random() % 2 ? 0xff : random());
    }
    check_plugin("x", bytes, lacks_nothing);
  }
}

}  // namespace
}  // namespace varve::cli
