// The MRI routes over a real server and a stack with the fake runtime.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/http/mri_routes.h"
#include "server_fixture.h"
#include "tests/unit/core/route/plain_fakes.h"

namespace varve::http {

using nlohmann::json;

// Only what the MRI routes ask of it.
class StackLane final : public PlainLane {
 public:
  explicit StackLane(std::unique_ptr<Stack> stack)
      : stack_(std::move(stack)), text_(stack_->text().table, stack_->text().self) {
    model_ = *text_.model_info();
  }
  const Text& text() const override { return text_; }
  const mri_model_info& model() const override { return model_; }
  const Stack& stack() const override { return *stack_; }

 private:
  std::unique_ptr<Stack> stack_;
  Text text_;
  mri_model_info model_{};
};

class StackDispatcher final : public PlainDispatcher {
 public:
  absl::StatusOr<Placement> place(const Arrival& arrival) const override {
    Placement placement;
    placement.class_name = arrival.who.class_name;
    placement.max_prompt_tokens = 4000;
    placement.lane = lanes_.at(arrival.who.class_name);
    return placement;
  }
  absl::Status charge(const Arrival&, const Placement&, uint64_t tokens) override {
    charged += tokens;
    return quota;
  }

  std::atomic<uint64_t> charged{0};       // tokens; handlers have threads of their own
  absl::Status quota = absl::OkStatus();  // what charge() says
};

// Keys "a", "b" (tenants of class fast) and "slow" (of class slow, whose runtime takes its time).
class MriTest : public ServerTest {
 protected:
  MriTest() : pool_(1) {
    add_lane("fast", 0);
    add_lane("slow", 2);
    options_.authenticate = [](std::string_view key) -> absl::StatusOr<Identity> {
      const std::string name(key);
      if (name != "a" && name != "b" && name != "slow") return absl::UnauthenticatedError("no");
      return Identity{name, name, name == "slow" ? "slow" : "fast", {}, Scope::kInference};
    };
    service_.dispatcher = &dispatcher_;
    service_.turnstile = &turnstile_;
    limits_.contexts_per_tenant = 3;
    limits_.calls_per_tenant = 4;
  }
  // Contexts end with the routes, before the stacks that they are of.
  ~MriTest() override {
    server_.reset();
    routes_.clear();
  }

  void add_lane(const std::string& class_name, int64_t delay_ms, int64_t kv_bytes_max = 0) {
    StackSpec spec;
    spec.plugin_directories = {VARVE_PLUGINS};
    spec.services.threads = &pool_;
    spec.plugins = {{"runtime",
                     "fake",
                     {{"delay_ms", Value(delay_ms)},
                      {"kv_bytes_max", Value(kv_bytes_max)},
                      {"record_path", Value(record_path())}}}};
    auto stack = load_stack(spec);
    EXPECT_TRUE(stack.ok()) << stack.status();
    lanes_[class_name] = dispatcher_.add_lane<StackLane>(class_name, *std::move(stack));
    lanes_[class_name]->now.budget_bytes = static_cast<uint64_t>(kv_bytes_max);
  }

  void start_mri() {
    add_mri_routes(service_, routes_, limits_);
    start();
  }

  Answer post(const std::string& method, const json& body, const std::string& headers = "",
              const std::string& key = "a") {
    return ask(
        request_text("POST /mri/" + method, "X-Api-Key: " + key + "\r\n" + headers, body.dump()));
  }
  uint64_t make_context(const std::string& text, const std::string& key = "a") {
    const Answer answer = post("init_context", {{"tokens", tokens(text)}}, "", key);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.status == 200 ? json::parse(answer.body)["ctx"].get<uint64_t>() : 0;
  }
  // The fake runtime's: a byte each.
  static std::vector<int> tokens(const std::string& text) { return {text.begin(), text.end()}; }

  // What the runtimes were called for, a line each.
  static std::string record_path() {
    return testing::TempDir() + "mri_calls_" + std::to_string(getpid()) +
           testing::UnitTest::GetInstance()->current_test_info()->name();
  }

  ThreadPool pool_;
  Turnstile turnstile_;
  StackDispatcher dispatcher_;
  std::map<std::string, StackLane*> lanes_;  // by class
  Service service_;
  MriLimits limits_;
};

}  // namespace varve::http
