#include "core/plugin/crash_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/plugin/stack.h"
#include "tests/unit/core/plugin/rogue_steps.h"

namespace varve {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class CrashRecordTest : public testing::Test {
 protected:
  CrashRecordTest() {
    folder_ = std::filesystem::path(testing::TempDir()) / "varve_crash_record_test";
  }
  ~CrashRecordTest() override { std::filesystem::remove_all(folder_); }

  void install(const char* more = "") {
    const absl::StatusOr<Profile> profile = Profile::parse(
        "[plugins]\ncrash_dir = \"" + folder_.string() + "\"\n" + more, ProfileSources());
    ASSERT_TRUE(profile.ok()) << profile.status();
    ASSERT_TRUE(install_crash_handler(*profile).ok());
  }
  absl::StatusOr<std::unique_ptr<Stack>> stack() {
    StackSpec spec;
    spec.plugin_directories = {PROBE_PLUGINS};
    spec.services.threads = &pool_;
    spec.plugins = {{"kv_tier", "rogue", {}}};
    return load_stack(spec);
  }
  void decide(uint64_t step) {
    const auto loaded = stack();
    if (!loaded.ok()) return;
    const auto policy = (*loaded)->peer<mri_kv_tier_v1>(MRI_KV_TIER);
    mri_tier_req req{};
    req.hdr.struct_size = sizeof(req);
    req.step = step;
    mri_tier_rsp rsp{};
    rsp.hdr.struct_size = sizeof(rsp);
    policy.table->decide(policy.self, &req, &rsp, nullptr);
  }
  void crash(uint64_t step) {
    install();
    decide(step);
  }

  std::filesystem::path folder_;
  ThreadPool pool_{1};
};

TEST_F(CrashRecordTest, NamesThePluginAndRefusesItAfterwards) {
  EXPECT_EXIT(crash(kStepCrash), testing::KilledBySignal(SIGSEGV),
              "SIGSEGV in the plugin org.varve.test.kv_tier.rogue, /.*kv_tier-rogue.so, "
              "sha256 [0-9a-f]{64}, function decide");
  std::vector<std::filesystem::path> records(std::filesystem::directory_iterator(folder_), {});
  ASSERT_EQ(records.size(), 1u);
  std::ifstream file(records[0]);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(text, HasSubstr("org.varve.test.kv_tier.rogue"));

  const auto in_new_process = [&](const char* more) {
    install(more);
    const auto loaded = stack();
    std::fprintf(stderr, "%s\n", loaded.ok() ? "loaded" : loaded.status().ToString().c_str());
    _exit(loaded.ok() ? 0 : 1);
  };
  EXPECT_EXIT(in_new_process(""), testing::ExitedWithCode(1),
              "MRI-E020 .*kv_tier-rogue.so: crashes: .*isolation = .worker.*delete the record.*"
              "allow_crashed");
  EXPECT_EXIT(in_new_process("allow_crashed = true\n"), testing::ExitedWithCode(0), "loaded");
  std::filesystem::remove(records[0]);
  EXPECT_EXIT(in_new_process(""), testing::ExitedWithCode(0), "loaded");
}

TEST_F(CrashRecordTest, SeesAnAbort) {
  EXPECT_EXIT(crash(kStepAbort), testing::KilledBySignal(SIGABRT), "SIGABRT in the plugin");
}

TEST_F(CrashRecordTest, BlamesNobodyForTheHostsOwnCrash) {
  const auto own = [&] {
    install();
    decide(0);
    raise(SIGSEGV);
  };
  EXPECT_EXIT(own(), testing::KilledBySignal(SIGSEGV), "^$");
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(CrashRecordTest, RefusesAFolderThatCannotBe) {
  const absl::StatusOr<Profile> profile =
      Profile::parse("[plugins]\ncrash_dir = \"/proc/nowhere\"\n", ProfileSources());
  ASSERT_TRUE(profile.ok());
  EXPECT_THAT(std::string(install_crash_handler(*profile).message()),
              AllOf(HasSubstr("plugins.crash_dir: found \"/proc/nowhere\""),
                    HasSubstr("expected a folder that can be made")));
}

}  // namespace
}  // namespace varve
