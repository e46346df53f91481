// The API's routes over a dispatcher and a lane that say what a test tells them to. Tokens are the
// fake runtime's: a byte each, 256 and 257 are its marks.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/http/service.h"
#include "mri/entry.h"
#include "tests/unit/core/route/plain_fakes.h"

extern "C" const mri_plugin_entry mri_plugin_entry_v1;  // of the fake runtime

namespace varve::http {

using nlohmann::json;

// What the lane does with a request, in the thread of submit().
using Script = std::function<void(const GenerateRequest& request, GenerateSink& sink)>;

class FakeLane final : public PlainLane {
 public:
  FakeLane() {
    host_.struct_size = sizeof(host_);
    host_.get_interface = [](const mri_host*, const char*) -> const void* { return nullptr; };
    mri_plugin_entry_v1.open(&host_, MRI_1_1, &plugin_, nullptr);
    plugin_->activate(plugin_->self, nullptr, 0, nullptr);
    text_ = std::make_unique<Text>(
        static_cast<const mri_text_v1*>(plugin_->get_interface(plugin_->self, MRI_TEXT)),
        plugin_->self);
    model_ = *text_->model_info();
  }
  ~FakeLane() override { plugin_->close(plugin_->self); }

  absl::Status submit(GenerateRequest request, std::shared_ptr<GenerateSink> sink,
                      CancelFlag flag) override {
    if (requests.size() >= n_accepted) return full;
    requests.push_back(request);
    sinks.push_back(sink);
    cancel = std::move(flag);
    if (script) script(request, *sink);
    return absl::OkStatus();
  }
  absl::Status forget_prefix(const std::string& tenant, std::vector<int32_t> prompt) override {
    forgotten.emplace_back(tenant, std::move(prompt));
    return absl::OkStatus();
  }
  const Text& text() const override { return *text_; }
  const mri_model_info& model() const override { return model_; }

  Script script;
  size_t n_accepted = 1000;
  absl::Status full = with_retry_after(absl::ResourceExhaustedError("full"), absl::Seconds(3));
  std::vector<GenerateRequest> requests;
  std::vector<std::shared_ptr<GenerateSink>> sinks;
  CancelFlag cancel;
  std::vector<std::pair<std::string, std::vector<int32_t>>> forgotten;
  mri_model_info model_{};

 private:
  mri_host host_{};
  mri_plugin* plugin_ = nullptr;
  std::unique_ptr<Text> text_;
};

class FakeDispatcher final : public PlainDispatcher {
 public:
  FakeDispatcher() {
    serve.server.choices_max = 8;
    serve.server.contexts_max = 2;
    serve.server.ping_interval = absl::InfiniteDuration();
  }

  // What they keep of requests keeps the lanes in turn.
  ~FakeDispatcher() override {
    lane->sinks.clear();
    other->sinks.clear();
  }

  absl::StatusOr<Placement> place(const Arrival& arrival) const override {
    arrivals.push_back(arrival);
    if (!arrival.forced_arm.empty() && arrival.who.scope != Scope::kAdmin)
      return absl::PermissionDeniedError("arms are for admins");
    if (arrival.service_tier == "priority") return absl::PermissionDeniedError("no such tier");
    if (throws) throw std::bad_alloc();
    Placement placement;
    placement.class_name = "standard";
    placement.stack = arrival.service_tier == "other" ? "other" : "main";
    placement.arm = arrival.forced_arm;
    placement.max_prompt_tokens = max_prompt_tokens;
    placement.max_answer_tokens = 100;
    placement.lane = lanes_.at(placement.stack);
    return placement;
  }
  absl::Status submit(const Arrival& arrival, const Placement& placement, GenerateRequest request,
                      std::shared_ptr<GenerateSink> sink, CancelFlag cancel) override {
    request.tenant = arrival.who.tenant;
    return placement.lane->submit(std::move(request), std::move(sink), std::move(cancel));
  }

  FakeLane* const lane = add_lane<FakeLane>("main");
  FakeLane* const other = add_lane<FakeLane>("other");  // of service_tier other
  uint64_t max_prompt_tokens = 0;
  bool throws = false;  // place() does
  mutable std::vector<Arrival> arrivals;
};

class FakeResponder final : public Responder {
 public:
  void send(Response response) override { sent.push_back(std::move(response)); }
  void start(Response head) override { heads.push_back(std::move(head)); }
  void write(std::string bytes) override { written += bytes; }
  void finish() override { ++n_finished; }
  bool gone() const override { return false; }
  void on_gone(std::function<void()> call) override { leave = std::move(call); }

  std::vector<Response> sent, heads;
  std::string written;
  int n_finished = 0;
  std::function<void()> leave;
};

// A piece per byte of `text`, then the end. Logprob of a token: -(its number) / 10.
inline void say(const std::string& text, const GenerateRequest& request, GenerateSink& sink,
                FinishReason reason = FinishReason::kStop) {
  const auto logprob = [](int32_t token, int n_top) {
    TokenLogprob shown{token, -static_cast<float>(token) / 10, {}};
    for (int i = 0; i < n_top; ++i) shown.top.emplace_back(i, -static_cast<float>(i) / 10);
    return shown;
  };
  if (request.n_prompt_logprobs >= 0) {
    std::vector<TokenLogprob> prompt;
    for (size_t i = 1; i < request.prompt.size(); ++i)
      prompt.push_back(logprob(request.prompt[i], request.n_prompt_logprobs));
    sink.on_prompt_logprobs(std::move(prompt));
  }
  GenerateResult result;
  result.prompt_tokens = request.prompt.size();
  result.cached_tokens = 1;
  for (const char c : text) {
    if (result.output_tokens == request.max_tokens) break;
    ++result.output_tokens;
    Piece piece{static_cast<unsigned char>(c), std::string(1, c), {}};
    if (request.n_logprobs >= 0) piece.logprobs = {logprob(piece.token, request.n_logprobs)};
    sink.on_piece(std::move(piece));
  }
  result.reason = result.output_tokens == request.max_tokens ? FinishReason::kLength : reason;
  sink.on_end(result);
}

class ApiTest : public testing::Test {
 protected:
  ApiTest() {
    service.dispatcher = &dispatcher;
    service.version = "1.2.3";
    service.model_name = "tiny";
    service.log = [this](LogLevel, std::string_view, std::string_view text) {
      logged.emplace_back(text);
    };
    add_openai_routes(service, routes);
    add_text_routes(service, routes);
    add_context_routes(service, routes);
    add_openapi_route(service, routes);
    answer_with("ok");
  }

  void answer_with(const std::string& text) {
    dispatcher.lane->script = [text](const GenerateRequest& request, GenerateSink& sink) {
      say(text, request, sink);
    };
  }

  // Calls the route of a pattern; what it answered is in `responder`.
  void call(const std::string& method, const std::string& pattern, const std::string& body,
            std::map<std::string, std::string> path_values = {}) {
    responder = std::make_shared<FakeResponder>();
    Request request = base;
    request.method = method;
    request.path = pattern;
    request.body = body;
    request.path_values = std::move(path_values);
    for (const Route& route : routes) {
      if (route.method == method && route.pattern == pattern)
        return route.handler(request, responder);
    }
    FAIL() << "no route " << method << " " << pattern;
  }

  // Lets the worker finish: it belongs to the routes.
  void settle() { routes.clear(); }

  json post(const std::string& pattern, const std::string& body,
            std::map<std::string, std::string> path_values = {}) {
    call("POST", pattern, body, std::move(path_values));
    return body_of();
  }
  json body_of() {
    if (responder->sent.empty()) settle();
    if (responder->sent.size() != 1) {
      ADD_FAILURE() << responder->sent.size() << " answers; " << responder->written;
      return {};
    }
    return json::parse(responder->sent.front().body);
  }
  int status() const { return responder->sent.empty() ? 0 : responder->sent.front().status; }

  // The events of a stream that ended well.
  std::vector<json> events() {
    std::vector<json> all;
    std::string_view rest = responder->written;
    bool is_done = false;
    while (!rest.empty()) {
      const size_t end = rest.find("\n\n");
      const std::string_view event = rest.substr(0, end);
      rest.remove_prefix(end + 2);
      if (event == "data: [DONE]") {
        EXPECT_TRUE(rest.empty());
        is_done = true;
      } else if (event.starts_with("data: ")) {
        all.push_back(json::parse(event.substr(6)));
      }
    }
    EXPECT_TRUE(is_done) << responder->written;
    EXPECT_EQ(responder->n_finished, 1);
    return all;
  }

  const GenerateRequest& asked(size_t i = 0) { return dispatcher.lane->requests.at(i); }

  FakeDispatcher dispatcher;
  Service service;
  std::vector<Route> routes;
  std::vector<std::string> logged;
  Request base{"req-1", "", "", {},
               {},      {}, "", Identity{"key", "tenant-a", "standard", {}, Scope::kInference}};
  std::shared_ptr<FakeResponder> responder;
};

inline std::vector<int32_t> bytes_of(std::string_view text) {
  std::vector<int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

}  // namespace varve::http
