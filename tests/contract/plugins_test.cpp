// What every plugin of the tree promises whatever its kind: it loads on each host version, says
// what it is, keeps the size rules, and does without any one service of the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "core/plugin/stack.h"
#include "tests/contract/contract_checks.h"
#include "tests/support/fake_host.h"

namespace varve {
namespace {

struct Plugin {
  std::string kind, name;
};

// PLUGINS is "kind:name,kind:name,…".
std::vector<Plugin> plugins() {
  std::vector<Plugin> list;
  for (const absl::string_view entry : absl::StrSplit(PLUGINS, ',')) {
    const std::vector<std::string> parts = absl::StrSplit(entry, ':');
    list.push_back({parts[0], parts[1]});
  }
  return list;
}

class PluginContract : public testing::TestWithParam<Plugin> {
 protected:
  PluginContract() : pool_(2) {
    spec_.plugin_directories = {PLUGIN_DIRECTORY};
    spec_.plugins = {{GetParam().kind, GetParam().name, {}}};
    spec_.services.threads = &pool_;
    spec_.kernels = &test::ref_kernels();
  }

  ThreadPool pool_;
  StackSpec spec_;
};

TEST_P(PluginContract, LoadsOnEachHostVersion) {
  for (const uint32_t host_max : {MRI_1_0, MRI_1_1}) {
    spec_.host_versions = {MRI_1_0, host_max};
    const auto stack = load_stack(spec_);
    ASSERT_TRUE(stack.ok()) << stack.status();
    EXPECT_EQ((*stack)->report()[0].info.negotiated, host_max);
  }
}

TEST_P(PluginContract, SaysWhatItIs) {
  const auto stack = load_stack(spec_);
  ASSERT_TRUE(stack.ok()) << stack.status();
  const PluginReport report = (*stack)->report()[0];
  EXPECT_EQ(report.info.kind, GetParam().kind);
  EXPECT_THAT(report.info.id, testing::EndsWith(GetParam().kind + "." + GetParam().name));
  EXPECT_EQ(report.info.built_version, MRI_HEADER_VERSION);
  EXPECT_NE(report.caps.thread_model, 1u) << "calls are [any]";
  for (const KeySpec& param : report.info.params) EXPECT_FALSE(param.help.empty()) << param.key;
}

TEST_P(PluginContract, KeepsTheSizeRules) {
  const auto stack = load_stack(spec_);
  ASSERT_TRUE(stack.ok()) << stack.status();
  EXPECT_THAT(test::size_findings(**stack, GetParam().kind), testing::IsEmpty());
  EXPECT_EQ((*stack)->report()[0].misbehaved, 0u);
}

TEST_P(PluginContract, DoesWithoutAnyOneHostService) {
  for (const char* id : {MRI_HOST_LOG, MRI_HOST_METRICS, MRI_HOST_THREADS, MRI_HOST_BUFFER}) {
    spec_.services.withheld = {id};
    const auto stack = load_stack(spec_);
    EXPECT_TRUE(stack.ok()) << id << ": " << stack.status();
  }
}

TEST_P(PluginContract, LivesTwiceInOneProcess) {
  const auto one = load_stack(spec_);
  auto two = load_stack(spec_);
  ASSERT_TRUE(one.ok() && two.ok());
  two->reset();
  EXPECT_THAT(test::size_findings(**one, GetParam().kind), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Tree, PluginContract, testing::ValuesIn(plugins()),
                         [](const auto& tested) {
                           return tested.param.kind + "_" + tested.param.name;
                         });

}  // namespace
}  // namespace varve
