// Each plugin of tests/support/bad_plugins has one fault. Here: what a host catches by itself, the
// loader before a function runs, the stack when it opens, the proxy at the call.
// conform_bad_plugins.py has all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "adapters/light/kernel_table.h"
#include "core/base/thread_pool.h"
#include "core/plugin/stack.h"

namespace varve {
namespace {

using testing::HasSubstr;

absl::StatusOr<std::unique_ptr<Stack>> stack_with(const std::string& name, VersionRange host = {},
                                                  StackSpec spec = {}) {
  spec.plugin_directories = {BAD_PLUGINS};
  spec.plugins = {{"quantizer", name, {}}};
  spec.host_versions = host;
  return load_stack(spec);
}

struct Case {
  const char* name;
  const char* rule;
  const char* fragment;
};

void expect_refused(const absl::Status& status, const Case& c) {
  EXPECT_FALSE(status.ok()) << c.name << " was let in";
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr(c.rule), HasSubstr(c.fragment)))
      << c.name;
}

TEST(BadPlugins, ControlIsSound) {
  const auto stack = stack_with("sound");
  ASSERT_TRUE(stack.ok()) << stack.status();
}

TEST(BadPlugins, OldPluginRunsOnANewHost) {
  const auto stack = stack_with("old_1_0");
  ASSERT_TRUE(stack.ok()) << stack.status();
  EXPECT_EQ((*stack)->report()[0].info.negotiated, MRI_1_0);
  expect_refused(stack_with("old_1_0", {MRI_1_1, MRI_1_1}).status(),
                 {"old_1_0", "MRI-E012", "Rebuild the plugin with newer MRI headers."});
}

TEST(BadPlugins, LoaderRefusesBeforeAnyFunctionRuns) {
  const Case cases[] = {
      {"two_symbols", "MRI-E003", "helper_that_should_be_hidden"},
      {"missing_symbol", "MRI-E004", "function_that_is_nowhere"},
      {"newer_glibc", "MRI-E004", "GLIBC_2.999"},
      {"newer_glibcxx", "MRI-E004", "GLIBCXX_3.4.999"},
      {"major_2_entry", "MRI-E005", "a major 2 plugin needs a newer varve"},
      {"wrong_magic", "MRI-E006", "wants the 8 bytes MRIPLUG"},
      {"short_struct", "MRI-E007", "wants 88 bytes or more, has 40"},
      {"unknown_kind", "MRI-E008", "has \"oracle\""},
      {"null_open", "MRI-E009", "wants a function open, has null"},
      {"min_above_max", "MRI-E011", "has 1.1..1.0"},
      {"major_2", "MRI-E012", "wants MRI 2.0..2.0, has a host of 1.0..1.1"},
      {"bad_id", "MRI-E013", "\"Not An Id\""},
      {"bad_params", "MRI-E014", "found the integer 9; expected an integer from 0 to 4"}};
  for (const Case& c : cases) {
    expect_refused(load_plugin({BAD_PLUGINS}, "quantizer", c.name).status(), c);
  }
}

TEST(BadPlugins, LoaderRefusesANewPluginOnAnOldHost) {
  expect_refused(stack_with("min_1_1", {MRI_1_0, MRI_1_0}).status(),
                 {"min_1_1", "MRI-E012",
                  "wants MRI 1.1..1.1, has a host of 1.0..1.0. Rebuild the plugin with "
                  "MRI_MIN_VERSION 1.0 or upgrade varve."});
  EXPECT_TRUE(stack_with("min_1_1").ok());
  EXPECT_FALSE(stack_with("sound", {MRI_VERSION(2, 0), MRI_VERSION(2, 0)}).ok()) << "a host of 2.0";
}

TEST(BadPlugins, StackRefusesAtOpen) {
  const Case cases[] = {
      {"refuses_open", "MRI-E016", "device failure: this machine has no such device"},
      {"null_activate", "MRI-E016", "no null function"},
      {"no_table", "MRI-E017", "mri.quantizer/1"},
      {"null_in_table", "MRI-E017", "an incomplete one"}};
  for (const Case& c : cases) expect_refused(stack_with(c.name).status(), c);
}

struct Outcome {
  mri_status status;
  std::string text;
  uint64_t misbehaved;
};

Outcome call(const std::string& name, const std::string& method) {
  const auto stack = stack_with(name);
  EXPECT_TRUE(stack.ok()) << stack.status();
  if (!stack.ok()) return {};
  const auto quantizer = (*stack)->peer<mri_quantizer_v1>(MRI_QUANTIZER);
  mri_error err{};
  err.struct_size = sizeof(err);
  mri_status status = MRI_OK;
  if (method == "describe") {
    mri_quant_desc desc{};
    desc.hdr.struct_size = sizeof(desc);
    status = quantizer.table->describe(quantizer.self, 64, &desc, &err);
  } else if (method == "encode") {
    mri_quant_encode_req req{};
    req.hdr.struct_size = sizeof(req);
    status = quantizer.table->encode(quantizer.self, &req, &err);
  } else {
    mri_quant_decode_req req{};
    req.hdr.struct_size = sizeof(req);
    status = quantizer.table->decode(quantizer.self, &req, &err);
  }
  return {status, err.msg, (*stack)->report()[0].misbehaved};
}

TEST(BadPlugins, ProxyContainsExceptions) {
  const Outcome exception = call("throws", "encode");
  EXPECT_EQ(exception.status, MRI_E_INTERNAL);
  EXPECT_THAT(exception.text, HasSubstr("quantizer-throws: scale of block 7 is negative"));
  EXPECT_EQ(exception.misbehaved, 1u);
  for (const auto& [name, method] :
       {std::pair("throws", "decode"), std::pair("foreign_exception", "encode")}) {
    const Outcome unknown = call(name, method);
    EXPECT_EQ(unknown.status, MRI_E_INTERNAL);
    EXPECT_THAT(unknown.text, HasSubstr("an exception of unknown type"));
  }
}

TEST(BadPlugins, ProxyDisbelievesImpossibleSizes) {
  const Outcome big = call("big_written", "describe");
  EXPECT_EQ(big.status, MRI_E_INTERNAL);
  EXPECT_THAT(big.text, HasSubstr("more bytes than there are"));
  EXPECT_EQ(big.misbehaved, 1u);
  const Outcome zero = call("zero_written", "describe");
  EXPECT_EQ(zero.status, MRI_E_INTERNAL);
  EXPECT_THAT(zero.text, HasSubstr("nothing was written"));
}

TEST(BadPlugins, ProxyMakesErrorTextFit) {
  const Outcome endless = call("endless_text", "encode");
  EXPECT_EQ(endless.status, MRI_E_DEVICE) << "the status still counts";
  EXPECT_EQ(endless.text, std::string(239, '?'));
  EXPECT_EQ(endless.misbehaved, 1u);
  EXPECT_EQ(call("latin1_text", "encode").text, "Ger?t fehlt");
}

TEST(BadPlugins, ProxyReplacesAnUnknownStatus) {
  const Outcome invented = call("status_12345", "encode");
  EXPECT_EQ(invented.status, MRI_E_INTERNAL);
  EXPECT_THAT(invented.text, HasSubstr("unknown status 12345"));
  EXPECT_EQ(invented.misbehaved, 1u);
}

// Every service of the host is [any]: there is no wrong thread to call one from, and a task of the
// host's loop may call the host again.
TEST(BadPlugins, HostServesThePluginsOwnThreads) {
  ThreadPool pool(3);
  std::atomic<uint64_t> lines{0};
  StackSpec spec;
  spec.services.threads = &pool;
  spec.services.log = [&](LogLevel, std::string_view, std::string_view) { ++lines; };
  spec.kernels = light::kernel_table();
  const auto stack = stack_with("any_thread", {}, spec);
  ASSERT_TRUE(stack.ok()) << stack.status();
  const auto rounds = [&] { return (*stack)->report()[0].metrics[0].value; };
  while (rounds() < 200 || lines == 0) {
    pool.parallel_for(
        2, [](void*, uint64_t, uint32_t) {}, nullptr);
  }
  EXPECT_EQ((*stack)->report()[0].misbehaved, 0u);
}

// A runtime in a stack of its own, and one context of it with `n_tokens`.
class BadRuntime : public testing::Test {
 protected:
  void load(const std::string& name) {
    StackSpec spec;
    spec.plugin_directories = {BAD_PLUGINS};
    spec.plugins = {{"runtime", name, {}}};
    spec.services.log = [this](LogLevel, std::string_view, std::string_view text) {
      log_ += std::string(text) + "\n";
    };
    auto stack = load_stack(spec);
    ASSERT_TRUE(stack.ok()) << stack.status();
    stack_ = *std::move(stack);
  }

  uint64_t make_context(uint64_t n_tokens) {
    const std::vector<int32_t> tokens(n_tokens, 1);
    auto req = sized<mri_init_req>();
    req.tokens = tokens.data();
    req.n_tokens = n_tokens;
    req.progress = [](void* user, uint64_t, uint64_t) { ++*static_cast<int*>(user); };
    req.progress_user = &n_progress_;
    auto rsp = sized<mri_init_rsp>();
    const auto runtime = stack_->runtime();
    EXPECT_EQ(runtime.table->init_context(runtime.self, &req, &rsp, nullptr), MRI_OK);
    return rsp.ctx;
  }

  mri_status evict(uint64_t ctx, mri_token_range range) {
    auto req = sized<mri_evict_req>();
    req.ranges = &range;
    req.n_ranges = 1;
    auto rsp = sized<mri_evict_rsp>();
    error_.struct_size = sizeof(error_);
    const auto runtime = stack_->runtime();
    return runtime.table->evict_kv(runtime.self, ctx, &req, &rsp, &error_);
  }

  template <class T>
  static T sized() {
    T value{};
    value.hdr.struct_size = sizeof(T);
    return value;
  }

  uint64_t misbehaved() { return stack_->report()[0].misbehaved; }

  std::string log_;
  std::unique_ptr<Stack> stack_;
  int n_progress_ = 0;
  mri_error error_{};
};

TEST_F(BadRuntime, ProgressFromAnotherThreadIsDropped) {
  load("progress_elsewhere");
  EXPECT_GT(make_context(64), 0u);
  EXPECT_EQ(n_progress_, 0);
  EXPECT_EQ(misbehaved(), 1u);
  EXPECT_THAT(log_, HasSubstr("progress called in another thread"));
}

TEST_F(BadRuntime, CannotReenterItselfThroughTheHost) {
  load("reenters");
  EXPECT_THAT(log_, HasSubstr("asks the stack for itself"));
  EXPECT_EQ(misbehaved(), 1u);
  const int32_t token = 1;
  mri_step_seq seq{};
  seq.ctx = make_context(64);
  seq.tokens = &token;
  seq.n_tokens = 1;
  auto req = sized<mri_step_req>();
  req.seqs = &seq;
  req.n_seqs = 1;
  auto rsp = sized<mri_step_rsp>();
  const auto runtime = stack_->runtime();
  EXPECT_EQ(runtime.table->forward_step(runtime.self, &req, &rsp, nullptr), MRI_OK);
  EXPECT_EQ(seq.status, MRI_OK) << "the context was released in the midst of its step";
  EXPECT_EQ(n_progress_, 1) << "a sound one comes through";
}

TEST_F(BadRuntime, CannotConfirmWhatTheContextNeverHad) {
  load("confirms_unknown");
  const uint64_t ctx = make_context(2000);
  EXPECT_EQ(evict(ctx, {1024, 1024}), MRI_OK) << error_.msg;
  EXPECT_EQ(evict(ctx, {100'000, 5}), MRI_E_INTERNAL);
  EXPECT_THAT(error_.msg, HasSubstr("evicted tokens that the context does not have there"));
  EXPECT_EQ(misbehaved(), 1u);
}

TEST_F(BadRuntime, CannotConfirmInAContextThatDoesNotExist) {
  load("confirms_no_context");
  const uint64_t ctx = make_context(64);
  EXPECT_EQ(evict(ctx + 1, {0, 32}), MRI_E_INTERNAL);
  const auto runtime = stack_->runtime();
  runtime.table->release_context(runtime.self, ctx);
  EXPECT_EQ(evict(ctx, {0, 32}), MRI_E_INTERNAL);
  EXPECT_THAT(error_.msg, HasSubstr("evicted tokens that the context does not have there"));
  EXPECT_EQ(misbehaved(), 2u);
}

}  // namespace
}  // namespace varve
