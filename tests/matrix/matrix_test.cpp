// A test per cell of the table in mri/abi/README.md: what each host says to each plugin.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/base/sha256.h"
#include "core/base/text.h"
#include "mri/ext/buffer.h"
#include "mri/ext/log.h"
#include "mri/ext/metrics.h"
#include "mri/ext/stack.h"
#include "mri/ext/threads.h"
#include "tests/matrix/hosts.h"

namespace varve::matrix {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kHeaders = "../../../mri/abi/frozen_1_0/mri/";  // from KEPT

constexpr uint32_t kMri20 = MRI_VERSION(2, 0);

struct Host {
  const char* name;
  VersionRange range;
};
constexpr Host kHosts[] = {{"host 1.0, kept binary", {MRI_1_0, MRI_1_0}},
                           {"host 1.1", {MRI_1_0, MRI_1_1}},
                           {"host 1.1 that wants 1.1", {MRI_1_1, MRI_1_1}},
                           {"host 2.0", {kMri20, kMri20}}};
constexpr size_t kHostCount = std::size(kHosts);

// `cells`: how the host's line begins, and for runtimes how it ends ("ok 1.0 … eviction unknown").
struct Row {
  const char* name;
  const char* file;  // <kind>-<file>.so
  VersionRange range;
  bool for_all_kinds;
  const char* cells[kHostCount];
};
constexpr Row kRows[] = {
    {"1.0, kept binary",
     "kept_1_0",
     {MRI_1_0, MRI_1_0},
     true,
     {"ok 1.0", "ok 1.0 … eviction unknown", "MRI-E012", "MRI-E012"}},
    {"1.1",
     "p1_1",
     {MRI_1_0, MRI_1_1},
     true,
     {"ok 1.0", "ok 1.1 … eviction done", "ok 1.1 … eviction done", "MRI-E012"}},
    {"1.1, min 1.1",
     "p1_1_min",
     {MRI_1_1, MRI_1_1},
     true,
     {"MRI-E012", "ok 1.1 … eviction done", "ok 1.1 … eviction done", "MRI-E012"}},
    {"1.1 headers, target 1.0",
     "p1_1_as_1_0",
     {MRI_1_0, MRI_1_0},
     true,
     {"ok 1.0", "ok 1.0 … eviction unknown", "MRI-E012", "MRI-E012"}},
    {"2.0", "p2_0", {kMri20, kMri20}, true, {"MRI-E005", "MRI-E005", "MRI-E005", "ok 2.0"}},
    {"1.0 and 2.0, two entries",
     "two_majors",
     {MRI_1_0, MRI_1_0},
     true,
     {"ok 1.0", "ok 1.0 … eviction unknown", "MRI-E012", "ok 2.0"}},
    {"1.1, writes only 32 bytes of an eviction's answer",
     "short",
     {MRI_1_0, MRI_1_1},
     false,
     {"ok 1.0", "ok 1.1 … eviction unknown", "ok 1.1 … eviction unknown", "MRI-E012"}},
    {"1.1, writes 48 bytes of it whatever the host has",
     "greedy",
     {MRI_1_0, MRI_1_1},
     false,
     {"broken", "ok 1.1 … eviction done", "ok 1.1 … eviction done", "MRI-E012"}},
    {"1.1 without mri.timings/1",
     "plain",
     {MRI_1_0, MRI_1_1},
     false,
     {"ok 1.0 … no mri.timings/1", "ok 1.1 … no mri.timings/1, eviction done",
      "ok 1.1 … no mri.timings/1, eviction done", "MRI-E012"}}};

constexpr const char* kServices[] = {MRI_HOST_LOG, MRI_HOST_METRICS, MRI_HOST_THREADS,
                                     MRI_HOST_BUFFER, MRI_HOST_STACK};

// How many answers each kind's calls have (kept_1_0/calls.c).
const std::map<std::string, int> kAnswers = {{"attention", 1},  {"batching", 3}, {"kv_tier", 4},
                                             {"quantizer", 32}, {"runtime", 4},  {"summary", 32}};

std::string range_text(VersionRange range) {
  return absl::StrCat(version_text(range.min), "..", version_text(range.max));
}

std::string path_of(const std::string& kind, const std::string& file) {
  return absl::StrCat(file == "kept_1_0" ? KEPT : MATRIX_PLUGINS, "/", kind, "-", file, ".so");
}

std::string said_by(size_t host, const std::string& kind, const std::string& plugin,
                    const std::vector<std::string>& without = {}) {
  if (host == 0) return on_program(KEPT "/host_probe.bin", plugin, without);
  if (host == 3) return on_program(HOST_2_0, plugin, without);
  return on_core(plugin, kind, kHosts[host].range, without);
}

void expect_cell(const Row& row, size_t host, const std::string& kind, const std::string& said) {
  const std::string cell = row.cells[host];
  if (cell == "MRI-E012") {
    EXPECT_THAT(said, AllOf(StartsWith("MRI-E012 org.example."),
                            HasSubstr("wants MRI " + range_text(row.range)),
                            HasSubstr("has a host of " + range_text(kHosts[host].range))));
  } else if (cell == "MRI-E005") {
    EXPECT_THAT(said, AllOf(StartsWith("MRI-E005 "),
                            HasSubstr("wants the data symbol mri_plugin_entry_v1, has none")));
  } else if (cell == "broken") {
    EXPECT_THAT(said, StartsWith("broken: a write outside the host's response"));
  } else {
    const std::vector<std::string> parts = absl::StrSplit(cell, " … ");
    const std::string first = absl::StrCat(parts[0], ", ", kAnswers.at(kind), " answers");
    const bool has_end = parts.size() == 2 && kind == "runtime";
    EXPECT_EQ(said, has_end ? absl::StrCat(first, ", ", parts[1]) : first);
  }
}

struct Cell {
  std::string kind;
  size_t row, host;
  std::string without;  // an interface of the host

  std::string name() const {
    const std::string text = absl::StrCat(kind, " ", kRows[row].file, " on ", kHosts[host].name,
                                          without.empty() ? "" : " without ", without);
    return absl::StrReplaceAll(text, {{" ", "_"}, {".", "_"}, {",", ""}, {"/", "_"}});
  }
};

void PrintTo(const Cell& cell, std::ostream* out) { *out << cell.name(); }

std::vector<Cell> cells() {
  std::vector<Cell> all;
  for (const auto& [kind, n] : kAnswers) {
    for (size_t row = 0; row < std::size(kRows); ++row) {
      if (!kRows[row].for_all_kinds && kind != "runtime") continue;
      for (size_t host = 0; host < kHostCount; ++host) all.push_back({kind, row, host, ""});
    }
  }
  return all;
}

// Rows 0 and 1 on hosts that lack one interface.
std::vector<Cell> cells_without() {
  std::vector<Cell> all;
  for (const auto& [kind, n] : kAnswers) {
    for (const size_t row : {0, 1}) {
      for (size_t host = 0; host < 3; ++host) {
        if (absl::StartsWith(kRows[row].cells[host], "MRI-")) continue;
        for (const char* service : kServices) all.push_back({kind, row, host, service});
      }
    }
  }
  return all;
}

class Matrix : public testing::TestWithParam<Cell> {};

TEST_P(Matrix, Holds) {
  const Cell& cell = GetParam();
  const Row& row = kRows[cell.row];
  std::vector<std::string> without;
  if (!cell.without.empty()) without.push_back(cell.without);
  expect_cell(row, cell.host, cell.kind,
              said_by(cell.host, cell.kind, path_of(cell.kind, row.file), without));
}

INSTANTIATE_TEST_SUITE_P(Cells, Matrix, testing::ValuesIn(cells()),
                         [](const auto& cell) { return cell.param.name(); });
INSTANTIATE_TEST_SUITE_P(HostWithout, Matrix, testing::ValuesIn(cells_without()),
                         [](const auto& cell) { return cell.param.name(); });

#ifdef TREE_PLUGINS  // without sanitizers
TEST(TreePlugins, RunOnTheKeptHost) {
  const std::vector<std::string> plugins = absl::StrSplit(TREE_PLUGINS, ',');
  int n_running = 0;
  for (const std::string& plugin : plugins) {
    const std::string said = said_by(0, "", plugin);
    n_running += absl::StartsWith(said, "ok 1.0, ") ? 1 : 0;
    EXPECT_THAT(said, testing::AnyOf(StartsWith("ok 1.0, "),
                                     AllOf(StartsWith("MRI-E018 "),
                                           EndsWith("the host offers no mri.kernels/1"))))
        << plugin;
  }
  EXPECT_GE(n_running, 5) << "without a runtime a host has no kernels, which some can do without";
}
#endif

TEST(Conformance, FailsPluginsThatRunBelowTheirClaim) {
  for (const char* file : {"short", "greedy"}) {
    const Ran ran = run(absl::StrCat("'", MRI_CONFORM, "' '", path_of("runtime", file),
                                     "' --reproduce size.response"));
    EXPECT_EQ(ran.code, 1) << ran.text;
    EXPECT_THAT(ran.text, HasSubstr("FAIL"));
  }
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Docs, HaveTheTable) {
  std::string table = "| plugin \\ host |";
  for (const Host& host : kHosts) absl::StrAppend(&table, " ", host.name, " |");
  absl::StrAppend(&table, "\n|---|", "---|---|---|---|", "\n");
  for (const Row& row : kRows) {
    absl::StrAppend(&table, "| ", row.name, row.for_all_kinds ? "" : " (runtime)", " |");
    for (const char* cell : row.cells) absl::StrAppend(&table, " ", cell, " |");
    absl::StrAppend(&table, "\n");
  }
  const std::string wanted = absl::StrCat("<!-- matrix -->\n", table, "<!-- /matrix -->\n");
  EXPECT_TRUE(absl::StrContains(contents(ABI "/README.md"), wanted))
      << "mri/abi/README.md lacks this table:\n"
      << wanted;
}

// What was built at the freeze is what is tried; its sources and headers are still there to read.
TEST(Kept, FilesAreThoseOfTheFreeze) {
  std::istringstream sums(contents(KEPT "/SHA256SUMS.txt"));
  std::set<std::string> listed;
  for (std::string sum, file; sums >> sum >> file; listed.insert(file)) {
    EXPECT_EQ(sha256_hex(contents(KEPT "/" + file)), sum)
        << file << " never changes: git checkout it";
  }
  uint64_t binary_bytes = 0;
  for (const char* folder : {KEPT, ABI "/frozen_1_0/mri"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (name == "SHA256SUMS.txt" || name == "CMakeLists.txt") continue;
      const std::string file = folder == std::string(KEPT) ? name : kHeaders + name;
      EXPECT_EQ(listed.count(file), 1u) << file << " is not in SHA256SUMS.txt";
      if (absl::EndsWith(name, ".so") || absl::EndsWith(name, ".bin")) {
        binary_bytes += entry.file_size();
      }
    }
  }
  EXPECT_GT(binary_bytes, 0u);
  EXPECT_LT(binary_bytes, 300'000u) << "they are for good";
}

}  // namespace
}  // namespace varve::matrix
