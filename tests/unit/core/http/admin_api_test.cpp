#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/http/service.h"
#include "tests/unit/core/http/kept_responder.h"
#include "tests/unit/core/route/dispatcher_fakes.h"

namespace varve::http {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class AdminApiTest : public testing::Test {
 protected:
  AdminApiTest() {
    ServeConfig config;
    DispatcherParts parts;
    for (const char* name : {"main", "int4"}) {
      StackConfig stack;
      stack.name = name;
      config.stacks.push_back(stack);
      parts.lanes[name] = std::make_unique<FakeLane>();
    }
    ClassConfig standard;
    standard.name = "standard";
    config.classes = {standard};
    ExperimentConfig canary;
    canary.name = "canary";
    canary.class_name = "standard";
    canary.salt = "a salt of the tests";
    canary.arms = {{"main", 95}, {"int4", 5}};
    config.experiments = {canary};
    parts.metrics = &metrics_;
    parts.log = std::make_unique<FakeLog>(&logged_);
    dispatcher_ = *Dispatcher::make(std::move(config), std::move(parts));
    service_.dispatcher = dispatcher_.get();
    add_admin_routes(service_, routes_);
  }

  Response call(const std::string& pattern, const std::string& body = "",
                const std::string& name = "canary") {
    Response response;
    Request request;
    request.body = body;
    request.path_values["name"] = name;
    request.who.key_id = "operator";
    for (const Route& route : routes_) {
      if (route.pattern == pattern) route.handler(request, std::make_shared<Kept>(&response));
    }
    return response;
  }
  Response stop(const std::string& body, const std::string& name = "canary") {
    return call("/admin/experiments/{name}/stop", body, name);
  }

  FakeMetrics metrics_;
  Logged logged_;
  std::unique_ptr<Dispatcher> dispatcher_;
  Service service_;
  std::vector<Route> routes_;
};

TEST_F(AdminApiTest, AllIsForAdmins) {
  EXPECT_EQ(routes_.size(), 3u);
  for (const Route& route : routes_) EXPECT_EQ(route.scope, Scope::kAdmin) << route.pattern;
}

TEST_F(AdminApiTest, TellsExperiments) {
  const json all = json::parse(call("/admin/experiments").body);
  ASSERT_EQ(all["experiments"].size(), 1u);
  const json& arm = all["experiments"][0]["arms"][1];
  EXPECT_EQ(arm["arm"], "int4");
  EXPECT_EQ(arm["weight"], 5);
  EXPECT_EQ(arm["requests"], 0);
  EXPECT_TRUE(arm["ttft_ms_mean"].is_null());
  for (const char* key : {"open", "unanswered", "unanswered_ms_max"}) EXPECT_EQ(arm[key], 0) << key;
  EXPECT_TRUE(arm["stopped"].is_null());
}

TEST_F(AdminApiTest, StopsAnArm) {
  const Response response = stop(R"({"arm": "int4", "why": "looks \u001b bad"})");
  EXPECT_EQ(response.status, 200) << response.body;
  const json arms = json::parse(response.body)["arms"];
  EXPECT_EQ(arms[1]["stopped"], "operator: looks ? bad");
  EXPECT_EQ(arms[1]["weight"], 0);
  EXPECT_EQ(arms[0]["weight"], 100);
}

TEST_F(AdminApiTest, RefusesWhatItCannotStop) {
  EXPECT_EQ(stop(R"({"arm": "int4", "why": "x"})", "other").status, 404);
  EXPECT_EQ(stop(R"({"arm": "int8", "why": "x"})").status, 404);
  EXPECT_EQ(stop(R"({"arm": "main", "why": "x"})").status, 400);
  for (const char* body : {"", "{", "[]", "{}", R"({"arm": "int4"})", R"({"arm": 1, "why": "x"})",
                           R"({"arm": "int4", "why": ""})"})
    EXPECT_EQ(stop(body).status, 400) << body;
  EXPECT_EQ(stop(std::string(100000, '[')).status, 400);
  EXPECT_EQ(dispatcher_->experiments()[0].arms[1].stopped, "");
}

TEST_F(AdminApiTest, Reloads) {
  EXPECT_EQ(call("/admin/reload").status, 501);
  service_.reload = [] { return std::vector<std::string>{"class.vip.priority: 1 -> 10"}; };
  EXPECT_EQ(json::parse(call("/admin/reload").body)["changes"][0], "class.vip.priority: 1 -> 10");
  service_.reload = [] { return absl::InvalidArgumentError("p.toml:3:1: found …"); };
  EXPECT_EQ(call("/admin/reload").status, 400);
  EXPECT_THAT(call("/admin/reload").body, HasSubstr("p.toml:3:1"));
}

}  // namespace
}  // namespace varve::http
