#include "core/plugin/stack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace varve {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string text_of(const absl::Status& status) { return std::string(status.message()); }

class StackTest : public testing::Test {
 protected:
  StackTest() : pool_(2) {
    spec_.plugin_directories = {PROBE_PLUGINS};
    spec_.services.threads = &pool_;
    spec_.services.log = [this](LogLevel, std::string_view who, std::string_view text) {
      log_ += std::string(who) + ": " + std::string(text) + "\n";
    };
    // The runtime comes last on purpose: order is the stack's business.
    spec_.plugins = {{"kv_tier", "probe", {{"first_block", Value(int64_t{5})}}},
                     {"runtime", "probe", {}}};
  }

  std::string refusal() { return text_of(load_stack(spec_).status()); }

  ThreadPool pool_;
  StackSpec spec_;
  std::string log_;
};

TEST_F(StackTest, WiresTheRuntimeToItsPeers) {
  const auto stack = load_stack(spec_);
  ASSERT_TRUE(stack.ok()) << stack.status();
  const mri::Peer<mri_runtime_v1> runtime = (*stack)->runtime();
  ASSERT_TRUE(runtime);
  mri_summary_req req{};
  req.hdr.struct_size = sizeof(req);
  mri_summary_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  EXPECT_EQ(runtime.table->get_kv_summary(runtime.self, 1, &req, &rsp, nullptr), MRI_OK);
  EXPECT_EQ(rsp.kv_epoch, 5u) << "the parameter of the kv_tier plugin";
  EXPECT_FALSE((*stack)->batching());
  EXPECT_FALSE((*stack)->peer<mri_kv_tier_v1>(MRI_KV_TIER, 1)) << "there is only one";
}

TEST_F(StackTest, ReportsPluginsMetricsAndCaps) {
  const auto stack = load_stack(spec_);
  ASSERT_TRUE(stack.ok()) << stack.status();
  const std::vector<PluginReport> report = (*stack)->report();
  ASSERT_EQ(report.size(), 2u);
  EXPECT_EQ(report[0].info.kind, "runtime");
  EXPECT_EQ(report[0].caps.thread_model, 2u);
  EXPECT_EQ(report[1].info.id, "org.varve.test.kv_tier");
  ASSERT_EQ(report[1].metrics.size(), 1u);
  EXPECT_EQ(report[1].metrics[0].value, 1) << "the runtime asked once, in activate";
  EXPECT_THAT(log_, HasSubstr("kv_tier-probe: probe is ready"));
}

TEST_F(StackTest, OffersTextThroughAProxy) {
  const auto stack = load_stack(spec_);
  ASSERT_TRUE(stack.ok()) << stack.status();
  const mri::Peer<mri_text_v1> text = (*stack)->text();
  ASSERT_TRUE(text);
  int32_t tokens[2];
  uint64_t n = 0;
  EXPECT_EQ(text.table->tokenize(text.self, "abc", 3, 0, 0, tokens, 2, &n, nullptr), MRI_E_SPACE);
  EXPECT_EQ(n, 3u);
  mri_model_info info{};
  info.hdr.struct_size = sizeof(info);
  EXPECT_EQ(text.table->model_info(text.self, &info, nullptr), MRI_OK);
  EXPECT_EQ(strnlen(info.name, sizeof(info.name)), sizeof(info.name) - 1) << "ended by the proxy";
}

// Rows and columns of the version matrix: a confirmation only where both speak 1.1.
TEST_F(StackTest, ConfirmsEvictionsOnlyWhereBothSpeak11) {
  for (const char* name : {"probe", "probe_1_0"}) {
    for (const uint32_t host_max : {MRI_1_0, MRI_1_1}) {
      const bool both = host_max == MRI_1_1 && name == std::string("probe");
      spec_.host_versions = {MRI_1_0, host_max};
      spec_.plugins[1].name = name;
      const auto stack = load_stack(spec_);
      ASSERT_TRUE(stack.ok()) << stack.status();
      const mri::Peer<mri_runtime_v1> runtime = (*stack)->runtime();
      mri_evict_req req{};
      req.hdr.struct_size = sizeof(req);
      req.reason = MRI_CONFIRM_DONE;
      mri_evict_rsp rsp{};
      rsp.hdr.struct_size = sizeof(rsp);
      EXPECT_EQ(runtime.table->evict_kv(runtime.self, 1, &req, &rsp, nullptr), MRI_OK);
      EXPECT_EQ(rsp.hdr.written, both ? MRI_EVICT_RSP_SIZE_1_1 : MRI_EVICT_RSP_SIZE_1_0);
      EXPECT_EQ(rsp.confirm_state, both ? MRI_CONFIRM_DONE : MRI_CONFIRM_UNKNOWN);
      EXPECT_EQ((*stack)->report()[0].info.negotiated, both ? MRI_1_1 : MRI_1_0);
    }
  }
  spec_.host_versions = {MRI_1_1, MRI_1_1};
  EXPECT_THAT(refusal(), HasSubstr("MRI-E012")) << "probe_1_0 is too old";
}

TEST_F(StackTest, WorksWithoutAnyOneHostInterface) {
  for (const char* id : {MRI_HOST_LOG, MRI_HOST_METRICS, MRI_HOST_THREADS, MRI_HOST_BUFFER}) {
    spec_.services.withheld = {id};
    EXPECT_TRUE(load_stack(spec_).ok()) << id;
  }
}

TEST_F(StackTest, ContainsWhatThrowsAndCountsIt) {
  const auto stack = load_stack(spec_);
  ASSERT_TRUE(stack.ok()) << stack.status();
  const mri::Peer<mri_runtime_v1> runtime = (*stack)->runtime();
  mri_step_seq seq{};
  seq.ctx = 1;
  mri_step_req req{};
  req.hdr.struct_size = sizeof(req);
  req.step_id = 666;
  req.seqs = &seq;
  req.n_seqs = 1;
  mri_step_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  EXPECT_EQ(runtime.table->forward_step(runtime.self, &req, &rsp, nullptr), MRI_E_INTERNAL);
  EXPECT_EQ((*stack)->report()[0].misbehaved, 1u);
  EXPECT_THAT(log_,
              HasSubstr("runtime-probe: plugin misbehaves: a sequence with an unknown status"));
}

TEST_F(StackTest, OffersTheSpecsKernelsWithoutARuntime) {
  mri_kernels_v1 kernels{};
  spec_.kernels = &kernels;
  spec_.plugins.pop_back();
  const auto stack = load_stack(spec_);
  ASSERT_TRUE(stack.ok()) << stack.status();
  EXPECT_EQ((*stack)->kernels(), &kernels);
  EXPECT_FALSE((*stack)->runtime());
}

TEST_F(StackTest, TwoStacksOfTheSameLibrariesLiveApart) {
  const auto one = load_stack(spec_);
  spec_.plugins[0].params = {};  // first_block stays 0, which the probe runtime refuses
  EXPECT_THAT(refusal(), HasSubstr("kv_tier is not ready"));
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_TRUE((*one)->runtime());
}

TEST_F(StackTest, NamesTheNearestParameter) {
  spec_.plugins[0].params = {{"frist_block", Value(int64_t{1})}};
  EXPECT_THAT(refusal(), AllOf(HasSubstr("MRI-E015 org.varve.test.kv_tier: parameter "
                                         "\"frist_block\""),
                               HasSubstr("Did you mean first_block?")));
}

TEST_F(StackTest, ChecksTypeRangeAndChoiceOfParameters) {
  spec_.plugins[0].params = {{"first_block", Value(int64_t{1001})}};
  EXPECT_THAT(refusal(), HasSubstr("found the integer 1001; expected an integer from 0 to 1000"));
  spec_.plugins[0].params = {{"eager", Value(int64_t{1})}};
  EXPECT_THAT(refusal(), HasSubstr("expected true or false"));
  spec_.plugins[0].params = {{"mode", Value(std::string("odd"))}};
  EXPECT_THAT(refusal(), HasSubstr("expected one of plain, fancy"));
  spec_.plugins[0].params = {{"first_block", Value(int64_t{5})}, {"share", Value(int64_t{0})}};
  EXPECT_TRUE(load_stack(spec_).ok()) << "an integer is a number";
}

TEST_F(StackTest, ShowsWhyAPluginDidNotActivate) {
  spec_.plugins[0].params = {{"mode", Value(std::string("fancy"))}};
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("MRI-E018 org.varve.test.kv_tier: activate"), HasSubstr("no fancy")));
  spec_.plugins[0].params = {{"share", Value(1.0)}};
  EXPECT_THAT(refusal(), HasSubstr("an exception of unknown type"));
}

TEST_F(StackTest, TakesOnePluginPerKind) {
  spec_.plugins.push_back(spec_.plugins[0]);
  EXPECT_THAT(refusal(), HasSubstr("found two plugins of kind kv_tier; expected one at most"));
}

TEST_F(StackTest, ClosesEverythingWhenOnePluginIsMissing) {
  spec_.plugins.push_back({"attention", "nowhere", {}});
  EXPECT_THAT(refusal(), HasSubstr("no plugin of this kind there"));
}

}  // namespace
}  // namespace varve
