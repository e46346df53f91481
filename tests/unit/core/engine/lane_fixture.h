// lane_fixture.h: a lane on the fake runtime, and a sink that remembers.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/base/thread_pool.h"
#include "core/engine/lane.h"
#include "core/plugin/stack.h"

namespace varve::test {

// What a sequence told, in whatever order it came; waits for its end.
class Recorder : public GenerateSink {
 public:
  void on_prompt_progress(uint64_t done, uint64_t n, uint64_t cached) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(n_ends_, 0);
    EXPECT_GT(done, last_done_);
    EXPECT_LE(done, n);
    last_done_ = done;
    cached_ = cached;
    ++n_progress;
    changed_.notify_all();
  }
  void on_prompt_logprobs(std::vector<TokenLogprob> told) override {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(prompt_logprobs.empty());
    EXPECT_EQ(n_pieces_, 0u);
    prompt_logprobs = std::move(told);
  }
  void on_piece(Piece piece) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(n_ends_, 0);
    text_ += piece.text;
    ++n_pieces_;
    logprobs.insert(logprobs.end(), piece.logprobs.begin(), piece.logprobs.end());
    changed_.notify_all();
  }
  void on_end(const GenerateResult& result) override {
    const std::lock_guard lock(mutex_);
    result_ = result;
    EXPECT_EQ(++n_ends_, 1);
    order_ = ++last_order;
    changed_.notify_all();
  }

  const GenerateResult& wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return n_ends_ > 0; });
    return result_;
  }
  void wait_for_pieces(uint64_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return n_pieces_ >= n || n_ends_ > 0; });
    EXPECT_GE(n_pieces_, n) << result_.status;
  }
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }
  int order() {
    wait();
    return order_;
  }
  uint64_t n_pieces() {
    const std::lock_guard lock(mutex_);
    return n_pieces_;
  }
  int n_ends() {
    const std::lock_guard lock(mutex_);
    return n_ends_;
  }

  std::vector<TokenLogprob> logprobs, prompt_logprobs;  // after wait()
  uint64_t n_progress = 0;                              // after wait()
  static inline std::atomic<int> last_order{0};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  GenerateResult result_;
  uint64_t n_pieces_ = 0, last_done_ = 0, cached_ = 0;
  int n_ends_ = 0, order_ = 0;
};

// `text` over and over: what the fake runtime answers to it.
inline std::string repeated(const std::string& text, size_t n) {
  std::string out;
  while (out.size() < n) out += text;
  return out.substr(0, n);
}

class LaneFixture : public testing::Test {
 protected:
  using Params = std::vector<std::pair<std::string, Value>>;

  // A lane of its own stack; `batching` empty: the lane's own order.
  void start(LaneOptions options, Params runtime = {}, const std::string& batching = "fcfs") {
    lane_.reset();
    stack_ = load(std::move(runtime), batching);
    if (options.name.empty()) options.name = "main";
    auto lane = Lane::start(options, stack_, &turnstile_);
    ASSERT_TRUE(lane.ok()) << lane.status();
    lane_ = *std::move(lane);
  }
  static std::shared_ptr<Stack> load(Params runtime, const std::string& batching = "fcfs") {
    StackSpec spec;
    static ThreadPool threads(2);
    spec.plugin_directories = {VARVE_PLUGIN_DIRECTORY};
    spec.services.threads = &threads;
    spec.plugins = {{"runtime", "fake", std::move(runtime)}};
    if (!batching.empty()) spec.plugins.push_back({"batching", batching, {}});
    auto stack = load_stack(spec);
    EXPECT_TRUE(stack.ok()) << stack.status();
    return std::shared_ptr<Stack>(*std::move(stack));
  }

  static GenerateRequest request(const std::string& prompt, uint64_t max_tokens = 8) {
    GenerateRequest r;
    r.id = prompt;
    r.tenant = "tenant";
    r.prompt.assign(prompt.begin(), prompt.end());
    r.max_tokens = max_tokens;
    return r;
  }
  std::shared_ptr<Recorder> submit(GenerateRequest r, CancelFlag cancel = nullptr) {
    auto sink = std::make_shared<Recorder>();
    const absl::Status status = lane_->submit(std::move(r), sink, std::move(cancel));
    EXPECT_TRUE(status.ok()) << status;
    return sink;
  }
  absl::Status refused(GenerateRequest r) {
    auto sink = std::make_shared<Recorder>();
    const absl::Status status = lane_->submit(std::move(r), sink, nullptr);
    EXPECT_FALSE(status.ok());
    return status;
  }
  static CancelFlag flag() { return std::make_shared<std::atomic<uint32_t>>(0); }

  // What the runtime counts.
  mri_memory_usage memory() const {
    mri_memory_usage usage{};
    usage.hdr.struct_size = sizeof(usage);
    EXPECT_EQ(stack_->memory().table->usage(stack_->memory().self, &usage, nullptr), MRI_OK);
    return usage;
  }

  Turnstile turnstile_;
  std::shared_ptr<Stack> stack_;
  std::unique_ptr<Lane> lane_;
};

}  // namespace varve::test
