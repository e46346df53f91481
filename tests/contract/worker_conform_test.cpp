// The suite's tests of a kind (mri/conformance), with the host's proxies in between: a plugin in a
// process of its own passes them, and whatever they note is what they note of it in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_split.h"
#include "adapters/light/kernel_table.h"
#include "core/plugin/stack.h"
#include "mri/conformance/suite.h"

namespace varve {
namespace {

using mri::conformance::Report;

// A stack of one plugin, looking like a plugin.
struct Hosted {
  std::unique_ptr<Stack> stack;
  const void* table = nullptr;
  mri_plugin plugin;
};

struct Tested {
  std::string kind, name;
  bool is_worker = false;
};
Tested tested;  // what open() opens: entries have no self

Mutex hosted_mutex;
std::map<void*, std::unique_ptr<Hosted>> all_hosted ABSL_GUARDED_BY(hosted_mutex);

Hosted& hosted(void* self) {
  const MutexLock lock(&hosted_mutex);
  return *all_hosted.at(self);
}

const void* get_interface(void* self, const char* id) {
  return id == "mri." + tested.kind + "/1" ? hosted(self).table : nullptr;
}
mri_status query_caps(void* self, mri_caps* out, mri_error*) {
  *out = hosted(self).stack->report()[0].caps;
  return MRI_OK;
}
mri_status activate(void*, const mri_param*, uint64_t, mri_error*) { return MRI_OK; }
mri_status drain(void*, uint64_t, mri_error*) { return MRI_OK; }
void close(void* self) {
  std::unique_ptr<Hosted> closed;
  const MutexLock lock(&hosted_mutex);
  closed = std::move(all_hosted.extract(self).mapped());
}

void* find_table(Hosted* to) {
  const auto keep = [to](const auto& peer) {
    to->table = peer.table;
    return peer.self;
  };
  if (tested.kind == "kv_tier") return keep(to->stack->peer<mri_kv_tier_v1>(MRI_KV_TIER));
  if (tested.kind == "batching") return keep(to->stack->peer<mri_batching_v1>(MRI_BATCHING));
  if (tested.kind == "summary") return keep(to->stack->peer<mri_summary_v1>(MRI_SUMMARY));
  return keep(to->stack->peer<mri_quantizer_v1>(MRI_QUANTIZER));
}

mri_status open(const mri_host*, uint32_t, mri_plugin** out, mri_error*) {
  StackSpec spec;
  spec.plugin_directories = {PLUGIN_DIRECTORY};
  spec.kernels = light::kernel_table();  // as in the worker
  Isolation isolation;
  isolation.is_worker = tested.is_worker;
  isolation.deadline_ms = 60'000;
  spec.plugins = {{tested.kind, tested.name, {}, isolation}};
  absl::StatusOr<std::unique_ptr<Stack>> stack = load_stack(spec);
  if (!stack.ok()) return MRI_E_INTERNAL;
  auto made = std::make_unique<Hosted>();
  made->stack = *std::move(stack);
  void* self = find_table(made.get());
  made->plugin = {sizeof(mri_plugin), 0, self, get_interface, query_caps, activate, drain, close};
  *out = &made->plugin;
  const MutexLock lock(&hosted_mutex);
  all_hosted[self] = std::move(made);
  return MRI_OK;
}

using Findings = std::vector<std::pair<Report::What, std::string>>;

Findings findings(const mri::conformance::Test& test, bool is_worker) {
  tested.is_worker = is_worker;
  Findings found;
  Report report(
      [&](Report::What what, const std::string& text) { found.emplace_back(what, text); });
  mri_plugin_entry entry{};
  entry.kind = tested.kind.c_str();
  entry.open = open;
  mri::conformance::Bench bench;
  bench.entry = &entry;
  bench.version = MRI_1_1;
  bench.kernels = light::kernel_table();
  bench.report = &report;
  mri::conformance::run_test(test, bench);
  return found;
}

class WorkerConform : public testing::TestWithParam<std::string> {};

TEST_P(WorkerConform, PassesAsInTheHost) {
  const std::vector<std::string> parts = absl::StrSplit(GetParam(), ':');
  tested = {parts[0], parts[1], false};
  int n_tests = 0;
  for (const mri::conformance::Test& test : mri::conformance::all_tests()) {
    const bool is_of_kind = test.kind == tested.kind && test.level < 5;
    const bool is_of_sizes =
        std::string_view(test.id).substr(0, 5) == "size." && test.id != std::string("size.caps");
    if (!is_of_kind && !is_of_sizes) continue;
    ++n_tests;
    const Findings there = findings(test, true);
    EXPECT_EQ(there, findings(test, false)) << test.id;
    for (const auto& [what, text] : there) EXPECT_NE(what, Report::What::kFail) << test.id << text;
  }
  EXPECT_GE(n_tests, 8);
}

std::vector<std::string> isolated() { return absl::StrSplit(PLUGINS, ','); }

INSTANTIATE_TEST_SUITE_P(Tree, WorkerConform, testing::ValuesIn(isolated()), [](const auto& param) {
  std::string name = param.param;
  name[name.find(':')] = '_';
  return name;
});

}  // namespace
}  // namespace varve
