// A dispatcher over fakes, with two stacks and two classes.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/route/dispatcher.h"
#include "tests/unit/core/route/dispatcher_fakes.h"

namespace varve {

class Sink final : public GenerateSink {
 public:
  void on_piece(Piece piece) override { text += piece.text; }
  void on_end(const GenerateResult& result) override {
    ++n_ends;
    reason = result.reason;
  }
  std::string text;
  int n_ends = 0;
  FinishReason reason = FinishReason::kError;
};

inline ClassConfig a_class(std::string name, std::string stack, uint32_t priority) {
  ClassConfig one;
  one.name = std::move(name);
  one.stack = std::move(stack);
  one.priority = priority;
  one.deadline = absl::InfiniteDuration();
  return one;
}

inline ServeConfig two_classes() {
  ServeConfig config;
  for (const char* name : {"main", "full"}) {
    StackConfig stack;
    stack.name = name;
    stack.profile = *Profile::parse("", {});
    config.stacks.push_back(std::move(stack));
  }
  config.classes = {a_class("standard", "main", 0), a_class("vip", "full", 10)};
  return config;
}

inline ExperimentConfig half_on_full() {
  ExperimentConfig experiment;
  experiment.name = "canary";
  experiment.class_name = "standard";
  experiment.salt = "a salt of the tests";
  experiment.arms = {{"main", 50}, {"full", 50}};
  experiment.min_units = 10;
  return experiment;
}

inline Arrival anonymous(std::string conversation = "") {
  Arrival arrival;
  arrival.who = {"anonymous", "anonymous", "standard", {}, Scope::kInference};
  arrival.conversation = std::move(conversation);
  return arrival;
}

inline GenerateRequest request(size_t n_prompt = 4, uint64_t max_tokens = 16) {
  GenerateRequest request;
  request.id = "req-1";
  request.prompt.assign(n_prompt, 1);
  request.max_tokens = max_tokens;
  return request;
}

class DispatcherTest : public testing::Test {
 protected:
  void make(ServeConfig config) {
    DispatcherParts parts;
    for (auto* lane : {&main_, &full_}) {
      auto made = std::make_unique<FakeLane>();
      *lane = made.get();
      parts.lanes[lane == &main_ ? "main" : "full"] = std::move(made);
    }
    parts.loader = loader_;
    parts.metrics = &metrics_;
    parts.lines = [this](LogLevel, std::string_view, std::string_view text) {
      lines_.emplace_back(text);
    };
    parts.log = std::make_unique<FakeLog>(&logged_);
    parts.stack_digests = {{"main", "digest-of-main"}};
    parts.on_ended = [this](const Placement& placement, const GenerateRequest& of,
                            const std::vector<int32_t>& answer, const GenerateResult&) {
      offered_.push_back(absl::StrCat(placement.arm, " ", of.prompt.size(), " ", answer.size()));
    };
    auto made = Dispatcher::make(std::move(config), std::move(parts));
    ASSERT_TRUE(made.ok()) << made.status();
    dispatcher_ = *std::move(made);
  }

  absl::Status submit(const Arrival& arrival, GenerateRequest of = request()) {
    const auto placement = dispatcher_->place(arrival);
    if (!placement.ok()) return placement.status();
    sink_ = std::make_shared<Sink>();
    return dispatcher_->submit(arrival, *placement, std::move(of), sink_, nullptr);
  }

  // A conversation that falls on the arm.
  std::string conversation_on(const std::string& arm, int from = 0) {
    for (int i = from;; ++i) {
      const std::string name = absl::StrCat("conversation ", i);
      if (dispatcher_->place(anonymous(name))->arm == arm) return name;
    }
  }

  StackLoader loader_;
  FakeMetrics metrics_;
  Logged logged_;
  std::vector<std::string> offered_;
  std::vector<std::string> lines_;
  FakeLane *main_ = nullptr, *full_ = nullptr;
  std::shared_ptr<Sink> sink_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

}  // namespace varve
