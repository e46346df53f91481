// The MRI routes over a real server and a stack with the fake runtime.
#pragma once

#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/http/mri_routes.h"
#include "server_fixture.h"

namespace varve::http {

using nlohmann::json;

// Only what the MRI routes ask of it.
class StackLane final : public Lane {
 public:
  explicit StackLane(std::unique_ptr<Stack> stack)
      : stack_(std::move(stack)), text_(stack_->text().table, stack_->text().self) {
    model_ = *text_.model_info();
  }
  absl::Status submit(GenerateRequest, std::shared_ptr<GenerateSink>, CancelFlag) override {
    return absl::UnavailableError("not here");
  }
  absl::Duration retry_after() const override { return absl::Seconds(1); }
  LaneStatus status() const override { return {}; }
  void drain(absl::Time) override {}
  void reconfigure(const LaneOptions&) override {}
  absl::Status forget_prefix(const std::string&, std::vector<int32_t>) override {
    return absl::OkStatus();
  }
  const Text& text() const override { return text_; }
  const mri_model_info& model() const override { return model_; }
  const Stack& stack() const override { return *stack_; }

 private:
  std::unique_ptr<Stack> stack_;
  Text text_;
  mri_model_info model_{};
};

class StackDispatcher final : public Dispatcher {
 public:
  absl::StatusOr<Placement> place(const Arrival& arrival) const override {
    Placement placement;
    placement.class_name = arrival.who.class_name;
    placement.max_prompt_tokens = 4000;
    placement.lane = lanes_.at(arrival.who.class_name);
    return placement;
  }
  absl::Status submit(const Arrival&, const Placement&, GenerateRequest,
                      std::shared_ptr<GenerateSink>, CancelFlag) override {
    return absl::UnavailableError("not here");
  }
  absl::Status charge(const Arrival&, const Placement&, uint64_t tokens) override {
    charged += tokens;
    return quota;
  }
  absl::StatusOr<Identity> authenticate(std::string_view) const override { return Identity{}; }
  std::vector<LaneInfo> lanes() const override {
    std::vector<LaneInfo> all;
    for (const auto& [name, one] : lanes_) all.push_back({name, 1, "", true, one});
    return all;
  }
  std::shared_ptr<Lane> main_lane() const override { return lanes_.begin()->second; }
  absl::StatusOr<std::vector<std::string>> reload(const ServeConfig&) override {
    return std::vector<std::string>();
  }
  absl::Status stop_arm(const std::string&, const std::string&, const std::string&) override {
    return absl::OkStatus();
  }
  void add_quality(const QualitySample&) override {}
  std::vector<ExperimentStatus> experiments() const override { return {}; }
  ServeConfig config() const override { return {}; }
  void drain(absl::Time) override {}

  uint64_t charged = 0;                   // tokens
  absl::Status quota = absl::OkStatus();  // what charge() says
  std::map<std::string, std::shared_ptr<Lane>> lanes_;
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

  void add_lane(const std::string& class_name, int64_t delay_ms) {
    StackSpec spec;
    spec.plugin_directories = {VARVE_PLUGINS};
    spec.services.threads = &pool_;
    spec.plugins = {{"runtime",
                     "fake",
                     {{"delay_ms", Value(delay_ms)}, {"record_path", Value(record_path())}}}};
    auto stack = load_stack(spec);
    EXPECT_TRUE(stack.ok()) << stack.status();
    dispatcher_.lanes_[class_name] = std::make_unique<StackLane>(*std::move(stack));
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
  Service service_;
  MriLimits limits_;
};

}  // namespace varve::http
