// Plugins in a process of their own: whatever they do there, the host gets an answer or an error.
#include "core/plugin/worker.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "core/plugin/library_file.h"
#include "core/plugin/stack.h"
#include "tests/unit/core/plugin/rogue_steps.h"

namespace varve {
namespace {

using testing::AllOf;
using testing::HasSubstr;

#ifdef VARVE_SANITIZED
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif
constexpr int kKills = kIsSanitized ? 100 : 1000;

int open_descriptors() {
  int n = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++n;
  closedir(folder);
  return n;
}

// One decide() for n blocks at a step.
struct Answer {
  mri_status status = MRI_OK;
  std::string text;
  uint64_t n_actions = 0;
  uint64_t capacity = 0;
  std::vector<mri_tier_action> actions;
};

Answer decide(const mri::Peer<mri_kv_tier_v1>& policy, uint64_t step, uint64_t n_blocks = 4,
              uint64_t capacity = 8) {
  std::vector<mri_tier_block> blocks(n_blocks);
  for (uint64_t i = 0; i < n_blocks; ++i) blocks[i].id = 100 + i;
  Answer answer;
  answer.actions.resize(capacity + 1, {UINT64_MAX, 0, 0, 0});
  mri_tier_req req{};
  req.hdr.struct_size = sizeof(req);
  req.blocks = blocks.data();
  req.n_blocks = n_blocks;
  req.step = step;
  mri_tier_rsp rsp{};
  rsp.hdr.struct_size = sizeof(rsp);
  rsp.actions = answer.actions.data();
  rsp.capacity = capacity;
  mri_error err{};
  err.struct_size = sizeof(err);
  answer.status = policy.table->decide(policy.self, &req, &rsp, &err);
  answer.text = err.msg;
  answer.n_actions = rsp.n_actions;
  answer.capacity = rsp.capacity;
  EXPECT_EQ(answer.actions[capacity].block_id, UINT64_MAX) << "written past the capacity";
  return answer;
}

bool is_right(const Answer& answer, uint16_t tier = 2, uint64_t n = 4) {
  if (answer.status != MRI_OK || answer.n_actions != n) return false;
  for (uint64_t i = 0; i < n; ++i) {
    if (answer.actions[i].block_id != 100 + i || answer.actions[i].tier != tier) return false;
  }
  return true;
}

class WorkerTest : public testing::Test {
 protected:
  WorkerTest() {
    spec_.plugin_directories = {PROBE_PLUGINS};
    spec_.services.log = [this](LogLevel, std::string_view who, std::string_view text) {
      const MutexLock lock(&mutex_);
      log_ += std::string(who) + ": " + std::string(text) + "\n";
    };
    Isolation isolation;
    isolation.is_worker = true;
    isolation.deadline_ms = 60'000;
    isolation.failures_max = 1'000'000;
    isolation.backoff_ms = 0;
    spec_.plugins = {{"kv_tier", "rogue", {}, isolation}};
  }

  Isolation& isolation() { return spec_.plugins[0].isolation; }
  void load() {
    absl::StatusOr<std::unique_ptr<Stack>> stack = load_stack(spec_);
    ASSERT_TRUE(stack.ok()) << stack.status();
    stack_ = *std::move(stack);
    policy_ = stack_->peer<mri_kv_tier_v1>(MRI_KV_TIER);
    ASSERT_TRUE(policy_);
  }
  std::string refusal() { return std::string(load_stack(spec_).status().message()); }
  WorkerStatus worker() { return *stack_->report()[0].worker; }
  std::string log() {
    const MutexLock lock(&mutex_);
    return log_;
  }
  // What a worker says comes by a way of its own, and maybe after its answer.
  std::string log_with(const std::string& text) {
    for (int i = 0; i < 1000 && log().find(text) == std::string::npos; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return log();
  }

  Mutex mutex_;
  std::string log_;
  StackSpec spec_;
  std::unique_ptr<Stack> stack_;
  mri::Peer<mri_kv_tier_v1> policy_;
};

TEST_F(WorkerTest, AnswersAsThePluginDoes) {
  spec_.plugins[0].params = {{"tier", Value(int64_t{1})}};
  load();
  EXPECT_TRUE(is_right(decide(policy_, 0), 1));
  EXPECT_EQ(decide(policy_, 0, 0).n_actions, 0u);
  const Answer full = decide(policy_, 0, 20, 3);
  EXPECT_EQ(full.status, MRI_E_SPACE);
  EXPECT_EQ(full.n_actions, 20u);
  EXPECT_EQ(full.actions[2].block_id, 102u);
  const PluginReport report = stack_->report()[0];
  EXPECT_EQ(report.info.id, "org.varve.test.kv_tier.rogue");
  EXPECT_EQ(report.info.name, "rogue");
  EXPECT_EQ(report.info.params.size(), 3u);
  ASSERT_GE(report.metrics.size(), 2u);
  EXPECT_EQ(report.metrics[0].name, "calls");
  EXPECT_EQ(report.metrics[0].value, 3);
  EXPECT_EQ(report.metrics[1].name, "worker_call_seconds");
  EXPECT_EQ(report.metrics[1].count, 3u);
  EXPECT_NE(report.worker->pid, 0);
  EXPECT_NE(report.worker->pid, getpid());
  EXPECT_THAT(log_with("rogue is ready"), HasSubstr("kv_tier-rogue: rogue is ready"));
}

TEST_F(WorkerTest, SeesNothingOfTheHost) {
  setenv("VARVE_SECRET", "x", 1);
  load();
  const Answer answer = decide(policy_, kStepEnvironment);
  EXPECT_TRUE(is_right(answer)) << answer.text;
}

TEST_F(WorkerTest, SurvivesEveryKindOfDeath) {
  load();
  uint64_t failures = 0;
  for (const uint64_t step : {kStepCrash, kStepAbort, kStepExit}) {
    const Answer answer = decide(policy_, step);
    EXPECT_EQ(answer.status, MRI_E_INTERNAL);
    EXPECT_THAT(answer.text, HasSubstr("died during the call"));
    EXPECT_TRUE(is_right(decide(policy_, 0))) << "it waits for the next process";
    EXPECT_EQ(worker().failures, ++failures);
    EXPECT_EQ(worker().restarts, failures);
  }
  // A sanitizer handles the first of the three itself.
  EXPECT_THAT(log(), HasSubstr(kIsSanitized ? "ended: exit status"
                                            : "ended: signal 11 (Segmentation fault)"));
  EXPECT_THAT(log(), AllOf(HasSubstr("ended: signal 6"), HasSubstr("ended: exit status 0"),
                           HasSubstr("failure 1 of")));
}

TEST_F(WorkerTest, EndsOneThatHangs) {
  isolation().deadline_ms = 200;
  load();
  const pid_t first = worker().pid;
  const Answer answer = decide(policy_, kStepHang);
  EXPECT_EQ(answer.status, MRI_E_INTERNAL);
  EXPECT_THAT(answer.text, HasSubstr("in 200 ms; the process was ended"));
  isolation().deadline_ms = 60'000;
  while (worker().pid == first || worker().pid == 0) std::this_thread::yield();
  EXPECT_EQ(kill(first, 0), -1) << "it is gone";
}

TEST_F(WorkerTest, DisbelievesLies) {
  load();
  const Answer lie = decide(policy_, kStepLie);
  EXPECT_EQ(lie.status, MRI_E_INTERNAL);
  EXPECT_THAT(lie.text, HasSubstr("more actions than room"));
  const Answer room = decide(policy_, kStepTakeRoom);
  EXPECT_EQ(room.status, MRI_E_INTERNAL);
  EXPECT_EQ(room.capacity, 8u) << "the caller's";
  const Answer thrown = decide(policy_, kStepThrow);
  EXPECT_EQ(thrown.status, MRI_E_INTERNAL);
  EXPECT_THAT(thrown.text, HasSubstr("block 7 is haunted"));
  EXPECT_THAT(decide(policy_, kStepThrowInt).text, HasSubstr("exception of unknown type"));
  EXPECT_EQ(worker().failures, 0u) << "the process lives";
  EXPECT_TRUE(is_right(decide(policy_, 0)));
}

TEST_F(WorkerTest, OutlivesScribblingOverSharedMemory) {
  isolation().deadline_ms = 2'000;
  load();
  for (int i = 0; i < 3; ++i) {
    const Answer answer = decide(policy_, kStepScribble);
    EXPECT_NE(answer.status, MRI_OK) << "no answer can be right after that";
    // The process may still be there, with slots that nobody can use: the first call ends it.
    const Answer next = decide(policy_, 0);
    EXPECT_TRUE(is_right(next) || next.status == MRI_E_INTERNAL) << next.status;
    EXPECT_TRUE(is_right(decide(policy_, 0))) << "of the next process";
  }
}

TEST_F(WorkerTest, LimitsMemory) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer needs its own address space";
  isolation().memory_mb = 1024;
  load();
  const Answer answer = decide(policy_, kStepLeak);
  EXPECT_EQ(answer.status, MRI_E_INTERNAL);
  EXPECT_THAT(answer.text, HasSubstr("no memory is left"));
}

TEST_F(WorkerTest, LogsWhatItPrints) {
  load();
  EXPECT_TRUE(is_right(decide(policy_, kStepPrint)));
  stack_.reset();
  EXPECT_THAT(log_with("just printed"), HasSubstr("kv_tier-rogue: just printed"));
}

TEST_F(WorkerTest, EndsItsChildrenToo) {
  load();
  const pid_t group = worker().pid;
  EXPECT_TRUE(is_right(decide(policy_, kStepFork)));
  stack_.reset();
  while (kill(-group, 0) == 0) std::this_thread::yield();
  SUCCEED() << "the group is empty";
}

TEST_F(WorkerTest, RefusesWhatCannotBeIsolated) {
  spec_.plugins[0].kind = "attention";
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("a plugin of kind attention works on the runtime's memory"),
                    HasSubstr("expected kv_tier")));
  spec_.plugins[0] = {"quantizer", "sound", {}, isolation()};
  isolation().fallback = "int8";
  EXPECT_THAT(refusal(), HasSubstr("a quantizer has no fallback"));
}

TEST_F(WorkerTest, RefusesAsTheHostItself) {
  spec_.plugins[0].name = "nowhere";
  EXPECT_THAT(refusal(), HasSubstr("MRI-E001"));
  spec_.plugins[0].name = "rogue";
  spec_.plugins[0].params = {{"teir", Value(int64_t{1})}};
  EXPECT_THAT(refusal(), HasSubstr("Did you mean tier?"));
  spec_.plugins[0].params = {{"crash_in_activate", Value(true)}};
  EXPECT_THAT(refusal(), AllOf(HasSubstr("MRI-E018"), HasSubstr("the worker has died")));
  isolation().program = "/nowhere/mri-worker";
  EXPECT_THAT(refusal(), AllOf(HasSubstr("MRI-E019 /nowhere/mri-worker"), HasSubstr("No such file"),
                               HasSubstr("plugins.worker_path")));
}

TEST_F(WorkerTest, LoadsOnlyWhatIsTrusted) {
  std::string name = testing::TempDir() + "/worker-trust-XXXXXX";
  const std::string folder = mkdtemp(name.data()), path = folder + "/kv_tier-rogue.so";
  std::filesystem::copy_file(std::string(PROBE_PLUGINS) + "/kv_tier-rogue.so", path);
  const std::string sha256 = read_library(path, {})->sha256;
  spec_.plugins[0].name = path;
  spec_.plugins[0].trust.sha256 = {std::string(64, 'a')};
  EXPECT_THAT(refusal(), AllOf(HasSubstr("MRI-E022"), HasSubstr(sha256)));
  spec_.plugins[0].trust.sha256 = {sha256};
  isolation().failures_max = 3;
  load();
  EXPECT_TRUE(is_right(decide(policy_, 0)));
  EXPECT_EQ(stack_->report()[0].info.sha256, sha256);

  // Also when it is started again, and without a pin: it was this one that was wanted.
  std::filesystem::remove(path);
  std::filesystem::copy_file(std::string(PROBE_PLUGINS) + "/kv_tier-probe.so", path);
  kill(worker().pid, SIGKILL);
  EXPECT_THAT(log_with("MRI-E022"), HasSubstr(sha256));
  stack_.reset();
  std::filesystem::remove_all(folder);
}

TEST_F(WorkerTest, RefusesACallThatDoesNotFit) {
  load();
  const Answer answer = decide(policy_, 0, 4, kWorkerPayloadBytes / sizeof(mri_tier_action));
  EXPECT_EQ(answer.status, MRI_E_NOMEM);
  EXPECT_THAT(answer.text, HasSubstr("larger than"));
}

TEST_F(WorkerTest, GoesIntoQuarantine) {
  isolation().failures_max = 3;
  load();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(decide(policy_, kStepCrash).status, MRI_E_INTERNAL);
  while (!worker().is_quarantined) std::this_thread::yield();
  const Answer answer = decide(policy_, 0);
  EXPECT_EQ(answer.status, MRI_E_INTERNAL);
  EXPECT_THAT(answer.text, HasSubstr("in quarantine"));
  EXPECT_EQ(worker().failures, 3u);
  EXPECT_EQ(worker().restarts, 2u);
  EXPECT_EQ(worker().pid, 0);
  EXPECT_THAT(log(), HasSubstr("in quarantine after 3 failures"));
}

TEST_F(WorkerTest, FallsBack) {
  isolation().failures_max = 2;
  isolation().fallback = "probe";  // demotes block first_block, 0 by default
  load();
  EXPECT_TRUE(is_right(decide(policy_, 0)));
  for (int i = 0; i < 4; ++i) {
    const Answer answer = decide(policy_, kStepCrash);
    EXPECT_EQ(answer.status, MRI_OK) << answer.text;
    EXPECT_EQ(answer.n_actions, 1u);
    EXPECT_EQ(answer.actions[0].block_id, 0u);
  }
  while (!worker().is_quarantined) decide(policy_, kStepCrash);
  EXPECT_EQ(decide(policy_, 0).n_actions, 1u);
  EXPECT_GE(worker().fallback_calls, 5u);
  isolation().fallback = "nowhere";
  EXPECT_THAT(refusal(), HasSubstr("MRI-E001"));
}

// Several callers, and somebody who kills the process as soon as there is one.
TEST_F(WorkerTest, EveryCallEndsWhileTheProcessIsKilled) {
  load();
  const int descriptors = open_descriptors();
  std::atomic<bool> is_over{false};
  std::atomic<uint64_t> right{0}, failed{0}, wrong{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&, t] {
      for (uint64_t step = 0; !is_over; ++step) {
        const uint64_t n = (step + static_cast<uint64_t>(t)) % 7;
        const Answer answer = decide(policy_, step % 1000, n);
        if (is_right(answer, 2, n)) {
          ++right;
        } else if (answer.status == MRI_E_INTERNAL &&
                   answer.text.find("the plugin's own process") != std::string::npos) {
          ++failed;
        } else {
          ++wrong;
        }
      }
    });
  }
  pid_t last = 0;
  for (int kills = 0; kills < kKills;) {
    const pid_t pid = worker().pid;
    if (pid == 0 || pid == last) {
      std::this_thread::yield();
      continue;
    }
    const uint64_t seen = right;
    while (right < seen + 3) std::this_thread::yield();
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    last = pid;
    ++kills;
  }
  is_over = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GE(right, 3u * kKills);
  EXPECT_TRUE(is_right(decide(policy_, 0)));
  EXPECT_EQ(worker().failures, static_cast<uint64_t>(kKills));
  EXPECT_EQ(open_descriptors(), descriptors);
  std::printf("%d kills: %lu right answers, %lu errors\n", kKills,
              static_cast<unsigned long>(right), static_cast<unsigned long>(failed));
}

}  // namespace
}  // namespace varve
